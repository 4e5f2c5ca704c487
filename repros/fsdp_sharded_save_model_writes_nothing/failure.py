"""`trainer.save_model(folder)` under FSDP with `SHARDED_STATE_DICT` returns as if all were well and writes nothing."""

from faultline.catalogue import Failure, Variant, helps

DOCS = "https://huggingface.co/docs/accelerate/en/package_reference/fsdp"
DOCS_FSDP = "https://huggingface.co/docs/transformers/fsdp"

FAILURE = Failure(
    title="`trainer.save_model` under FSDP with `SHARDED_STATE_DICT` writes nothing",
    first_seen="transformers' `Trainer`",
    since="April 2024, as reported",
    until="open with transformers 5.23: `save_model` has a branch for `FULL_STATE_DICT` and no other",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in what is saved
    errors={
        # Of a folder without weights, whoever left it so.
        "no-weights": r"Error no file named .{1,200}found in directory|Cannot find any model weights with",
    },
    also_raises=("no-storage",),  # zero3_save_pretrained_empty
    variants=(
        Variant("broken", strategies=("single", "ddp", "fsdp*")),
        Variant("broken", trainer="sft", strategies=("single", "ddp", "zero2", "zero3", "fsdp*")),
        Variant("merge", trainer="sft", strategies=("fsdp*",)),
    ),
    claims={
        "https://huggingface.co/blog/ram-efficient-pytorch-fsdp": helps(
            '`trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")` before the last save',
            "sft-broken/fsdp*",
            remedy="full",
        ),
        DOCS: helps("`accelerate merge-weights` on the shards of a checkpoint", "*broken/fsdp*", remedy="merge"),
        "https://github.com/huggingface/transformers/issues/30491": helps(
            "`trainer.model.save_pretrained(folder)` on the main process", "sft-broken/fsdp*", remedy="rank_0"
        ),
        DOCS_FSDP: helps("`FULL_STATE_DICT` from the start", "sft-broken/fsdp*", remedy="from_start"),
    },
)

SHARDED = {"state_dict_type": "SHARDED_STATE_DICT"}


def scenario(remedy, setup):
    """The mechanism: accelerate, set by the variable that its launcher sets, and a checkpoint of its own."""
    import os

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    os.environ["FSDP_STATE_DICT_TYPE"] = "SHARDED_STATE_DICT"
    return Scenario(qwen2(), causal_lm_loss, text_batch, accelerate=True)


def trainer(variant, arguments, setup):
    from faultline.trainers import changed_config
    from tiny_models.checkpoints import GATHER
    from tiny_models.kit import qwen2, sft_trainer

    if "fsdp_config" in arguments and variant.remedy != "from_start":
        arguments["fsdp_config"] = {**arguments["fsdp_config"], **SHARDED}
    if variant.remedy == "merge" and not setup.reference:
        arguments |= {"save_strategy": "steps", "save_steps": arguments["max_steps"]}
    return sft_trainer(qwen2(), changed_config(arguments, GATHER, setup))


def save(variant, trained, folder):
    accelerator = trained.accelerator
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if not variant.trainer:
        accelerator.save_state(str(folder))
        if variant.remedy == "merge":
            merge(folder / "pytorch_model_fsdp_0", folder)
    elif variant.remedy == "merge":
        merge(newest(trained) / "pytorch_model_fsdp_0", folder)
    elif variant.remedy == "rank_0":
        if trained.is_world_process_zero():
            trained.model.save_pretrained(folder)
    else:
        if variant.remedy == "full":
            plugin.set_state_dict_type("FULL_STATE_DICT")
        trained.save_model(str(folder))


def newest(trained):
    from pathlib import Path

    return max(Path(trained.args.output_dir).glob("checkpoint-*"))


def merge(shards, folder):
    """What `accelerate merge-weights` calls."""
    from accelerate.utils import merge_fsdp_weights

    merge_fsdp_weights(str(shards), str(folder))


def load(variant, folder):
    """As a user who puts the config there, where none was saved."""
    from transformers import Qwen2ForCausalLM

    from tiny_models.qwen2 import config

    if not (folder / "config.json").exists():
        config().save_pretrained(folder)
    return Qwen2ForCausalLM.from_pretrained(folder)
