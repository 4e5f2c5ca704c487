"""`trainer.save_model(folder)` under FSDP with `SHARDED_STATE_DICT` returns as if all were well and writes nothing."""

from faultline.catalogue import Claim, Failure, Variant

OFF = ("off",)  # checkpointing has no part in what is saved
FSDP = ("fsdp*",)
NEEDS = ("sharded state dict",)

FAILURE = Failure(
    title="`trainer.save_model` under FSDP with `SHARDED_STATE_DICT` writes nothing",
    records=(
        "https://github.com/huggingface/transformers/issues/30491",
        "https://github.com/huggingface/transformers/issues/37519",
        "https://github.com/huggingface/transformers/issues/36626",
        "https://github.com/huggingface/transformers/issues/24208",
        "https://github.com/huggingface/transformers/issues/31034",
    ),
    since="April 2024, as reported",
    until="open with transformers 5.23: `save_model` has a branch for `FULL_STATE_DICT` and no other",
    upstream="huggingface/transformers",
    report="sft-broken/*",
    signatures={
        # Of a folder without weights, whoever left it so.
        "no-weights": r"Error no file named .{1,200}found in directory",
    },
    context={"no-weights": r"SHARDED_STATE_DICT|\.distcp\b|pytorch_model_fsdp"},
    later={"no-weights": "checkpoint-lacks"},
    elsewhere=("no-storage",),  # zero3_save_pretrained_empty
    variants=(
        Variant(
            "broken",
            strategies=("single", "ddp", "fsdp*"),
            checkpointing=OFF,
            package="accelerate",
            needs=NEEDS,
            look="`accelerator.save_state`, loaded with `from_pretrained`",
        ),
        Variant("merge", strategies=FSDP, checkpointing=OFF),
        Variant(
            "broken",
            "sft",
            ("single", "ddp", "zero2", "zero3", "fsdp*"),
            checkpointing=OFF,
            package="transformers",
            needs=NEEDS,
        ),
        *(Variant(remedy, "sft", FSDP, checkpointing=OFF) for remedy in ("full", "merge", "rank_0", "from_start")),
    ),
    claims={
        "a": Claim(
            '`trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")` before the last save',
            swap={"remedy": "full"},
            where={"variant": "sft-broken", "strategy": "fsdp*"},
        ),
        "b": Claim(
            "`accelerate merge-weights` on the shards of a checkpoint",
            swap={"remedy": "merge"},
            where={"strategy": "fsdp*"},
        ),
        "c": Claim(
            "`trainer.model.save_pretrained(folder)` on the main process",
            swap={"remedy": "rank_0"},
            where={"variant": "sft-broken", "strategy": "fsdp*"},
        ),
        "d": Claim(
            "`FULL_STATE_DICT` from the start",
            swap={"remedy": "from_start"},
            where={"variant": "sft-broken", "strategy": "fsdp*"},
        ),
    },
)

SHARDED = {"state_dict_type": "SHARDED_STATE_DICT"}
GATHER = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}}


def scenario(remedy, setup):
    """The mechanism: accelerate, told by the variable that its launcher sets, and a checkpoint of its own."""
    import os

    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    os.environ["FSDP_STATE_DICT_TYPE"] = "SHARDED_STATE_DICT"
    return Scenario(qwen2(), causal_lm_loss, text_batch, accelerate=True)


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from faultline.trainer import changed_config
    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    if "fsdp_config" in arguments and variant.remedy != "from_start":
        arguments["fsdp_config"] = {**arguments["fsdp_config"], **SHARDED}
    if variant.remedy == "merge" and not setup.reference:
        arguments |= {"save_strategy": "steps", "save_steps": arguments["max_steps"]}
    config = SFTConfig(**changed_config(arguments, GATHER, setup))
    return SFTTrainer(qwen2(), config, train_dataset=text_dataset(), processing_class=tokenizer(padding_side="right"))


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
