"""A sample of the model before or between training steps meets FSDP1's shards, and leaves FSDP2's root whole."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

PYTORCH = "https://github.com/pytorch/pytorch/pull/125394"
NOUSNET = "https://github.com/PsycheFoundation/nousnet/pull/285"
SYNCED = "https://github.com/huggingface/transformers/pull/33483"
RESHARD = "https://github.com/pytorch/pytorch/issues/154655"

FAILURE = Failure(
    title="`generate` around training steps fails under FSDP1, or leaves FSDP2 untrained",
    first_seen="plain torch with FSDP1; scripts that sample while they train",
    since="torch's first FullyShardedDataParallel, and its first release with fully_shard",
    until="not fixed: FSDP1's root gathers in its own forward alone, and FSDP2's stays whole until a backward pass",
    upstream="pytorch/pytorch",
    checkpointing=("off",),  # checkpointing has no part in a generation
    errors={
        "sharded-weight": r"'weight' must be 2-D|non-zero number of elements, but its data is not allocated yet"
        r"|are out of bounds for storage of size 0\b",
        # FSDP1 in NO_SHARD: a block that runs first takes itself for the root, and the root refuses that later.
        "lazily-initialized": r"Non-root FSDP instance's `_is_root` should not have been set yet",
    },
    also_raises=("lazily-initialized",),  # fsdp2_method_or_child_outside_root_forward
    variants=(
        Variant("between_broken", text="a generation before the second step"),
        *variants("summoned summoned_all between_summoned_all synced forward_first", strategies=("single", "fsdp1*")),
        *variants("registered resharded", strategies=("single", "fsdp2*")),
    ),
    claims={
        "https://github.com/huggingface/trl/pull/3260": helps(
            "`FSDP.summon_full_params(model, recurse=False)` around it", "broken/fsdp1*", remedy="summoned"
        ),
        "https://github.com/pytorch/pytorch/issues/100069": (
            helps("`FSDP.summon_full_params(model)`", "broken/fsdp1*", remedy="summoned_all"),
            helps("a forward pass of the wrapper first", "broken/fsdp1*", remedy="forward_first"),
            trains("`use_orig_params=True`, as here", "*broken/fsdp1*", key="use_orig_params"),
        ),
        "https://github.com/huggingface/accelerate/issues/3825": helps(
            "`FSDP.summon_full_params(model)` between steps", "between_broken", remedy="between_summoned_all"
        ),
        SYNCED: helps("`synced_gpus=True`", "broken/fsdp1*", remedy="synced"),
        RESHARD: helps("`model.reshard()` after it", "broken/fsdp2*", remedy="resharded"),
        PYTORCH: helps('`register_fsdp_forward_method(model, "generate")`', "broken/fsdp2*", remedy="registered"),
        NOUSNET: helps("no generation before the first step", "broken", variant="between_broken"),
        TRIED_HERE: trains("DDP and ZeRO need nothing", "*broken/[dz]*"),
    },
)


def scenario(remedy, setup):
    from contextlib import nullcontext

    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import register_fsdp_forward_method

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, sgd, text_batch

    def sample(model):
        """See what the model says: on every rank as many tokens, of prompts of one length."""
        prompts = text_batch(0, setup.data_rank, setup.data_world)["input_ids"][:, :8].to(setup.device)
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
