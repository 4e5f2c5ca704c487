"""A sample of the model before or between training steps meets FSDP1's shards, and leaves FSDP2's root whole."""

from faultline.catalogue import Claim, Failure, Variant

GENERATE = "https://github.com/pytorch/pytorch/issues/100069"
EVERY_200 = "https://github.com/huggingface/accelerate/issues/3825"
SYNCED = "https://github.com/huggingface/transformers/pull/33483"
RESHARD = "https://github.com/pytorch/pytorch/issues/154655"

OFF = ("off",)  # checkpointing has no part in a generation
FSDP1, FSDP2 = ("single", "fsdp1*"), ("single", "fsdp2*")
RAISES = {"variant": "broken", "strategy": "fsdp1*"}
UNTRAINED = {"variant": "broken", "strategy": "fsdp2*"}

FAILURE = Failure(
    title="`generate` before or between training steps raises under FSDP1, or leaves FSDP2 untrained",
    records=(
        "https://github.com/pytorch/pytorch/issues/123962",
        GENERATE,
        "https://github.com/pytorch/pytorch/issues/103682",
        "https://github.com/huggingface/transformers/issues/30228",
        SYNCED,
        EVERY_200,
        "https://github.com/pytorch/pytorch/issues/149205",
        RESHARD,
    ),
    since="torch's first FullyShardedDataParallel, and its first release with fully_shard",
    until="not fixed: FSDP1's root gathers in its own forward alone, and FSDP2's stays whole until a backward pass",
    upstream="pytorch/pytorch",
    signatures={
        "sharded-weight": r"'weight' must be 2-D",
        # FSDP1 in NO_SHARD: a block that runs first takes itself for the root, and the root refuses that later.
        "lazily-initialized": r"Non-root FSDP instance's `_is_root` should not have been set yet",
    },
    elsewhere=("lazily-initialized",),  # fsdp2_method_or_child_outside_root_forward
    # A generation of one's own: those of TRL's trainers have other causes as well.
    context={"sharded-weight": r"(?s)\A(?!.*trl/trainer/)(?=.*generation/utils\.py\", line \d)"},
    variants=(
        Variant("broken", checkpointing=OFF, look="`generate` before the optimizer is made, as a sanity check"),
        Variant("between_broken", checkpointing=OFF, look="`generate` between training steps"),
        Variant("summoned", checkpointing=OFF, strategies=FSDP1),
        Variant("summoned_all", checkpointing=OFF, strategies=FSDP1),
        Variant("between_summoned_all", checkpointing=OFF, strategies=FSDP1),
        Variant("synced", checkpointing=OFF, strategies=FSDP1),
        Variant("forward_first", checkpointing=OFF, strategies=FSDP1),
        Variant("registered", checkpointing=OFF, strategies=FSDP2),
        Variant("resharded", checkpointing=OFF, strategies=FSDP2),
    ),
    claims={
        "a": Claim(
            "`FSDP.summon_full_params(model, recurse=False)` around it", "helps", {"remedy": "summoned"}, RAISES
        ),
        "b": Claim("`FSDP.summon_full_params(model)`", "helps", {"remedy": "summoned_all"}, RAISES, GENERATE),
        "b2": Claim(
            "`FSDP.summon_full_params(model)` between steps",
            swap={"remedy": "between_summoned_all"},
            where={"variant": "between_broken"},
            source=EVERY_200,
        ),
        "c": Claim("`synced_gpus=True`", "helps", {"remedy": "synced"}, RAISES, SYNCED),
        "d": Claim("a forward pass of the wrapper first", "helps", {"remedy": "forward_first"}, RAISES, GENERATE),
        "e": Claim("`use_orig_params=True`, as here", "trains", {}, {"strategy": "fsdp1*"}, GENERATE),
        "f": Claim("`model.reshard()` after it", "helps", {"remedy": "resharded"}, UNTRAINED, RESHARD),
        "g": Claim(
            '`register_fsdp_forward_method(model, "generate")`',
            swap={"remedy": "registered"},
            where=UNTRAINED,
            source="https://github.com/pytorch/pytorch/pull/125394",
        ),
        "h": Claim(
            "no generation before the first step",
            swap={"variant": "between_broken"},
            where={"variant": "broken"},
            source="https://github.com/PsycheFoundation/nousnet/pull/285",
        ),
        "i": Claim("DDP and ZeRO need nothing", "trains", {}, {"strategy": "[dz]*"}),
    },
)


def scenario(remedy, setup):
    from contextlib import nullcontext

    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import register_fsdp_forward_method

    from faultline.scenario import Scenario, causal_lm_loss, sgd
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    def sample(model):
        """See what the model says: on every rank as many tokens, of prompts of one length."""
        prompts = text_batch(0, setup.rank, setup.world_size)["input_ids"][:, :8].to(setup.device)
        if remedy == "forward_first":
            with torch.no_grad():
                model(input_ids=prompts)
        if remedy == "registered":
            register_fsdp_forward_method(model, "generate")
        settings = {"synced_gpus": setup.world_size > 1} if remedy == "synced" else {}
        unwrapped, recurse = getattr(model, "module", model), remedy != "summoned"
        with FSDP.summon_full_params(model, recurse, writeback=False) if "summoned" in remedy else nullcontext():
            unwrapped.generate(prompts, max_new_tokens=4, min_new_tokens=4, do_sample=False, **settings)
        if remedy == "resharded" and hasattr(model, "reshard"):
            model.reshard()

    def optimizer(model):
        sample(model)
        return sgd(model)

    def before_step(model, step):
        if step == 1:
            sample(model)

    if remedy.startswith("between"):
        return Scenario(qwen2(), causal_lm_loss, text_batch, before_step=before_step)
    return Scenario(qwen2(), causal_lm_loss, text_batch, optimizer=optimizer)
