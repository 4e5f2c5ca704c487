"""Every rank builds weights of its own, and its engine takes a shard of each: the model is a mixture of all of them."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, detects, helps, trains, variants

OPEN_LM = "https://github.com/mlfoundations/open_lm/pull/139"
ACCELERATE = "https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2"
FSDP = ("single", "fsdp*")
SOME = ("single", "ddp", "zero3", "fsdp1-full", "fsdp2")

FAILURE = Failure(
    title="Ranks that build different weights train a mixture of them under FSDP",
    first_seen="pretraining with FSDP1, without a seed before the model is built",
    since="torch's first releases with FSDP1 (2022) and fully_shard (2024)",
    until="not fixed: FSDP1 gives all ranks the same weights if it is asked to, and `fully_shard` can't be asked",
    checkpointing=("off",),  # which has no part in how training starts
    errors={"check": r"the ranks start with different weights"},
    variants=(
        Variant("head_broken", "", FSDP, text="only the head is drawn by each rank, as a new one is"),
        Variant("broken", "sft", SOME, text="a new adapter is drawn by each rank"),
        *variants("seeded broadcast", strategies=FSDP),
        *variants("seeded_late checked", strategies=("fsdp1-full", "fsdp2")),
        *variants("from_rank_0", strategies=("fsdp2*",)),
        *variants("seeded", trainer="sft", strategies=SOME),
    ),
    claims={
        "https://github.com/pytorch/torchtitan/issues/166": helps(
            "seed torch before the model is built", remedy="seeded"
        ),
        OPEN_LM: helps("seed torch right before the model is wrapped", "broken/fsdp*", remedy="seeded_late"),
        ACCELERATE: trains("`sync_module_states` is redundant with FSDP2", "sft-broken/fsdp2"),
        "https://github.com/hiyouga/LlamaFactory/pull/10264": helps(
            "`set_model_state_dict` with `broadcast_from_rank0=True`", "broken/fsdp2*", remedy="from_rank_0"
        ),
        TRIED_HERE: (
            helps("broadcast rank 0's weights before they are wrapped", "broken/fsdp*", remedy="broadcast"),
            detects("compare a sum of the weights between the ranks", "broken/fsdp*", remedy="checked"),
            helps("ZeRO-3 instead of FSDP", "broken/fsdp*", strategy="zero3"),
            helps("DDP instead of FSDP", "broken/fsdp*", strategy="ddp"),
        ),
    },
)


def scenario(remedy, setup):
    import torch
    from torch import distributed

    from faultline.base.errors import CheckFailed
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, sgd, text_batch

    several = distributed.is_initialized()
    model = qwen2(seed=0 if remedy in ("seeded", "head_broken") else setup.rank)
    if remedy == "head_broken":
        model.lm_head.load_state_dict(qwen2(seed=setup.rank).lm_head.state_dict())
    if remedy == "seeded_late":
        torch.manual_seed(0)
    if remedy == "broadcast" and several:
        for parameter in model.parameters():
            distributed.broadcast(parameter.data, 0)
    whole = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def from_rank_0(wrapped):
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

        if several:
            options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            set_model_state_dict(wrapped, whole if setup.rank == 0 else {}, options=options)
        return sgd(wrapped)

    def same_everywhere(wrapped, batch):
        local = torch.stack([tensor.double().sum() for tensor in whole.values()])
        sums = [torch.empty_like(local) for _ in range(setup.world_size)]
        if several:
            distributed.all_gather(sums, local)
        if several and any(not torch.equal(each, local) for each in sums):
            raise CheckFailed("the ranks start with different weights")

    optimizer = from_rank_0 if remedy == "from_rank_0" else None
    check = same_everywhere if remedy == "checked" else None
    return Scenario(model, causal_lm_loss, text_batch, optimizer=optimizer, check=check)


def trainer(variant, arguments, setup):
    from tiny_models.kit import add_lora, qwen2, sft_trainer

    seed = 1 if variant.remedy == "seeded" else 1 + setup.rank
    return sft_trainer(add_lora(qwen2(), seed=seed), arguments)
