"""Saving on the main process only, as one does in one process and under DDP, leaves the other ranks waiting."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

FAILURE = Failure(
    title="Saving on the main process only hangs where saving takes all ranks",
    first_seen="sd-scripts",
    since="accelerate's first release with DeepSpeed (2021)",
    until="not fixed: what is sharded is gathered or written by all ranks together",
    checkpointing=("off",),  # checkpointing has no part in what is saved
    errors={
        # What gloo says when two ranks are in different collectives, rather than to wait for ever.
        "other-collective": r"Received data size doesn't match expected size",
        "timeout": r"Watchdog caught collective operation timeout",  # NCCL's
    },
    also_raises=("SIGSEGV", "no-storage"),  # on the CPU, FSDP1's save_state() of what is sharded dies whoever calls it
    variants=(
        Variant("resumed", strategies=("ddp*",), text="the failure, and what rank 1 resumes from is read"),
        Variant("resumed_all_ranks", strategies=("ddp*",), text="save on all ranks, and the same is read"),
        *variants("broken all_ranks", trainer="sft"),
    ),
    claims={
        "https://github.com/huggingface/diffusers/issues/2606": helps("save on all ranks", remedy="all_ranks"),
        TRIED_HERE: (
            helps("wait for the main process (`accelerator.wait_for_everyone()`)", remedy="barrier"),
            trains(
                "under DDP, where the model is whole on each rank, the main process saves all that rank 1 resumes from",
                "resumed",
            ),
            trains("under DDP, `save_state()` on all ranks has the random generators of both", "resumed_all_ranks"),
        ),
    },
)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    return Scenario(qwen2(), causal_lm_loss, text_batch, accelerate=True)


def trainer(variant, arguments, setup):
    from faultline.trainers import changed_config
    from tiny_models.checkpoints import GATHER
    from tiny_models.kit import qwen2, sft_trainer

    return sft_trainer(qwen2(), changed_config(arguments, GATHER, setup), "left")


def save(variant, trained, folder):
    write = trained.save_model if variant.trainer else trained.accelerator.save_state
    if variant.remedy.endswith("all_ranks") or trained.accelerator.is_main_process:
        write(str(folder))
    if variant.remedy == "barrier":
        trained.accelerator.wait_for_everyone()


def load(variant, folder):
    """What was saved of the model; of `resumed*` also what `load_state()` reads on rank 1, or silently passes over."""
    import torch

    from tiny_models.checkpoints import state_dict

    if variant.remedy.startswith("resumed"):
        torch.load(folder / "random_states_1.pkl", weights_only=False)
    return state_dict(folder)
