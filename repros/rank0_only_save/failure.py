"""Saving on the main process only, as one does in one process and under DDP, leaves the other ranks waiting."""

from faultline.catalogue import Claim, Failure, Variant

OFF = ("off",)  # checkpointing has no part in what is saved
DDP = ("ddp*",)

FAILURE = Failure(
    title="Saving on the main process only hangs where saving takes all ranks",
    records=(
        "https://github.com/kohya-ss/sd-scripts/pull/604",
        "https://github.com/ibrahimethemhamamci/CT-CLIP/issues/16",
        "https://huggingface.co/docs/transformers/deepspeed",
    ),
    since="accelerate's first release with DeepSpeed (2021)",
    until="not fixed: what is sharded is gathered or written by all ranks together",
    report="broken/zero3/*",
    signatures={
        # What gloo says when two ranks are in different collectives, rather than to wait for ever.
        "other-collective": r"Received data size doesn't match expected size",
    },
    elsewhere=("SIGSEGV",),  # on the CPU, FSDP1's save_state() of what is sharded dies whoever calls it
    context={"other-collective": r"[.]save_(?:state|model|pretrained|checkpoint)\(|, in _?save"},
    variants=(
        Variant("broken", checkpointing=OFF, look="`if accelerator.is_main_process: accelerator.save_state(...)`"),
        Variant("all_ranks", checkpointing=OFF),
        Variant("barrier", checkpointing=OFF),
        Variant("resumed", checkpointing=OFF, strategies=DDP),
        Variant("resumed_all_ranks", checkpointing=OFF, strategies=DDP),
        Variant(
            "broken",
            checkpointing=OFF,
            trainer="sft",
            look="`if trainer.is_world_process_zero(): trainer.save_model(...)`",
        ),
        Variant("all_ranks", checkpointing=OFF, trainer="sft"),
    ),
    claims={
        "a": Claim("save on all ranks", swap={"remedy": "all_ranks"}),
        "b": Claim("wait for the main process (`accelerator.wait_for_everyone()`)", swap={"remedy": "barrier"}),
        "c": Claim(
            "under DDP, where the model is whole on each rank, the main process saves all that rank 1 resumes from",
            kind="trains",
            where={"variant": "resumed"},
        ),
        "d": Claim(
            "under DDP, `save_state()` on all ranks has the random generators of both",
            kind="trains",
            where={"variant": "resumed_all_ranks"},
        ),
    },
)

GATHER = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}}


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    return Scenario(qwen2(), causal_lm_loss, text_batch, accelerate=True)


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from faultline.trainer import changed_config
    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    config = SFTConfig(**changed_config(arguments, GATHER, setup))
    return SFTTrainer(qwen2(), config, train_dataset=text_dataset(), processing_class=tokenizer())


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
