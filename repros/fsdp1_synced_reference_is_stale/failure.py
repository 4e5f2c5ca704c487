"""A reference model that is synchronised with its policy goes on with its old weights under FSDP1."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

SOME = ("single", "ddp", "fsdp1-full", "fsdp1-grad-op", "fsdp1-no-shard", "fsdp2", "zero2")
IN_TRL = (*SOME, "zero3")  # whose shards TRL gathers before it mixes them
PYTORCH = "https://github.com/pytorch/pytorch/issues/117742"
TR_DPO = "https://github.com/huggingface/trl/pull/1593"
SHARE = 0.6  # of the policy in what the reference becomes

FAILURE = Failure(
    title="Under FSDP1, a synchronised reference model goes on with its old weights",
    first_seen="averages of weights under FSDP1; `faultline explore` met it in TRL's `sync_ref_model`",
    since="torch's first FSDP; in TRL since it has `sync_ref_model`",
    until="not fixed: FSDP1 keeps whole weights of a root whose backward pass never comes",
    upstream="pytorch/pytorch",
    also_raises=("lazily-initialized", "no-zero3-copy"),  # older releases of TRL
    checkpointing=("off",),
    variants=(
        *variants("broken summoned", strategies=SOME),
        *variants("state_dict", strategies=("single", "fsdp1-full", "fsdp1-grad-op")),
        Variant("broken", trainer="dpo", second="ref_model", strategies=IN_TRL),
        Variant("broken", trainer="grpo", second="ref_model", strategies=IN_TRL),
    ),
    claims={
        PYTORCH: helps("`summon_full_params` of both models around the change", "broken", remedy="summoned"),
        TR_DPO: trains("`sync_ref_model=True`", "dpo-broken"),
        TRIED_HERE: (
            helps("a mixed state dict that the reference loads", "broken", remedy="state_dict"),
            helps("FSDP2", "*broken/fsdp1*", strategy="fsdp2"),
            helps("ZeRO-3", "*-broken/fsdp1*", strategy="zero3"),
            helps("no shards", "*broken/fsdp1*", strategy="fsdp1-no-shard"),
        ),
    },
)


def mix(reference, policy):
    for old, new in zip(reference.parameters(), policy.parameters(), strict=True):
        old.data.mul_(1 - SHARE).add_(new.data, alpha=SHARE)


def synchronise(reference, policy, remedy):
    """What TRL does after a step, and what else mixes the weights of two models."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    if remedy == "state_dict":
        weights = policy.state_dict()
        mixed = {name: (1 - SHARE) * old + SHARE * weights[name] for name, old in reference.state_dict().items()}
        reference.load_state_dict(mixed)
    elif remedy == "summoned" and isinstance(reference, FSDP):
        with FSDP.summon_full_params(reference), FSDP.summon_full_params(policy, writeback=False):
            mix(reference, policy)
    else:
        mix(reference, policy)


def scenario(remedy, setup):
    """A policy that stays near a reference, which moves towards it after every step."""
    from tiny_models.kit import Scenario, qwen2, text_batch
    from tiny_models.second import near, prepared_as_by_trl, second_model

    prepared, second = second_model(lambda accelerator: prepared_as_by_trl(accelerator, qwen2(seed=1)))

    def before_step(model, step):
        if step:
            synchronise(prepared["second"], model, remedy)

    return Scenario(qwen2(), near(prepared), text_batch, second=second, before_step=before_step)


def trainer(variant, arguments, setup):
    from faultline.trainers import from_trl
    from tiny_models.kit import GRPO, letter_score, qwen2, saved, tokenizer, turns

    name = variant.trainer.upper()
    settings = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": SHARE}
    others = {"processing_class": tokenizer(), "train_dataset": turns("prompt chosen rejected")}
    if name == "GRPO":
        settings |= {**GRPO, "beta": 0.1}
        others["reward_funcs"] = letter_score
    args = from_trl(variant.trainer, f"{name}Config")(**arguments, **settings)
    return from_trl(variant.trainer, f"{name}Trainer")(model=saved(qwen2(), setup), args=args, **others)
