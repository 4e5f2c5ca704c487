"""DeepSpeed clips gradients as its config says, whatever `max_grad_norm` says: without the key at 1.0, or never."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant
from faultline.errors import CheckFailed

LOGGED = "https://github.com/deepspeedai/DeepSpeed/issues/6743"

OFF = ("off",)  # checkpointing has no part in clipping
BISECT = (
    "make bisect FAILURE=deepspeed_gradient_clipping_omitted PACKAGE=deepspeed OTHERS=fixed VARIANT=broken"
    " STRATEGY=zero3 CHECKPOINTING=off FROM=0.18.9 TO=0.19.3 DIRECTION=introduced"
)
UNSAID = ("no gradient_clipping", "own max_grad_norm")
ZERO = ("zero0", "zero1", "zero2", "zero3")

FAILURE = Failure(
    title="`max_grad_norm` is ignored under DeepSpeed where the config has no `gradient_clipping`",
    records=(
        "https://github.com/axolotl-ai-cloud/axolotl/issues/1381",
        "https://github.com/deepspeedai/DeepSpeed/pull/8068",
        "https://github.com/huggingface/accelerate/issues/3807",
        "https://github.com/huggingface/transformers/issues/37566",
        "https://github.com/deepspeedai/DeepSpeed/issues/7220",
        "https://github.com/huggingface/trl/issues/3312",
        LOGGED,
    ),
    since="March 2024, as reported; clipped unasked since deepspeed 0.19.3",
    until="not fixed: transformers fills the key in only where the config has it",
    upstream="huggingface/transformers",
    report="sft-broken/*",
    reported=Reported("deepspeed-0.19.3", "broken", "zero3", good="deepspeed-0.19.2"),
    began=(Turn("deepspeed", "0.19.3", {"variant": "broken", "strategy": "zero*"}, BISECT),),
    signatures={"check": r"CheckFailed: .*above max_grad_norm"},
    variants=(
        Variant("broken", checkpointing=OFF, needs=UNSAID),
        Variant("explicit", strategies=("zero*",), checkpointing=OFF),
        Variant(
            "broken",
            trainer="sft",
            strategies=("single", "ddp", "zero*", "fsdp1-full", "fsdp2"),
            checkpointing=OFF,
            package="deepspeed",
            needs=UNSAID,
        ),
        *(Variant(remedy, "sft", ("ddp", *ZERO), checkpointing=OFF) for remedy in ("auto", "norm_in_log")),
        *(Variant(remedy, "sft", ZERO, checkpointing=OFF) for remedy in ("explicit", "norm_0", "norm_1")),
    ),
    claims={
        "a": Claim(
            '`"gradient_clipping": "auto"` in the config',
            swap={"remedy": "auto"},
            where={"variant": "sft-broken", "strategy": "zero*"},
        ),
        "b": Claim(
            "a number for `gradient_clipping` in the config, or 0.0",
            swap={"remedy": "explicit"},
            where={"strategy": "zero*"},
        ),
        "c": Claim(
            "`max_grad_norm` alone",
            kind="present",
            where={"variant": "sft-broken", "strategy": "zero*"},
        ),
        "d": Claim(
            "`max_grad_norm=0`, so that nothing is clipped",
            swap={"remedy": "norm_0"},
            where={"variant": "sft-broken"},
        ),
        "e": Claim(
            "`max_grad_norm=1.0`, which is DeepSpeed's default as well since 0.19.3",
            swap={"remedy": "norm_1"},
            where={"variant": "sft-broken"},
        ),
        "f": Claim(
            "a `grad_norm` above `max_grad_norm` in the log tells that gradients aren't clipped",
            kind="detects",
            swap={"remedy": "norm_in_log"},
            where={"variant": "sft-auto"},
            source=LOGGED,
        ),
        "g": Claim("DDP and FSDP clip as they are told", kind="trains", where={"strategy": "[df][ds]*"}),
    },
)

# What a user means to clip at, and what the config says; without an entry it says nothing.
MEANT = {"norm_0": 0.0, "norm_1": 1.0}
SAID = {"auto": "auto", "norm_in_log": "auto", "explicit": 0.5}


def scenario(remedy, setup):
    """Nobody asks to clip, and the gradients' norm is above 1."""
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    return Scenario(
        qwen2(), causal_lm_loss, text_batch, deepspeed={"gradient_clipping": 0.0 if remedy == "explicit" else None}
    )


def trainer(variant, arguments, setup):
    """The real trainer, told to clip in its own arguments."""
    from trl import SFTConfig, SFTTrainer

    from faultline.trainer import changed_config
    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import qwen2
    from tiny_models.tokenizer import tokenizer

    changes = {"gradient_clipping": SAID.get(variant.remedy)}
    meant = {"max_grad_norm": MEANT.get(variant.remedy, 0.5)}
    config = SFTConfig(**{**changed_config(arguments, changes, setup), **meant})
    built = SFTTrainer(qwen2(), config, train_dataset=text_dataset(), processing_class=tokenizer(padding_side="right"))
    if variant.remedy == "norm_in_log" and not setup.reference:
        built.add_callback(log_reader())
    return built


def log_reader():
    """What people conclude from the log: a norm above `max_grad_norm` was not clipped."""
    from transformers import TrainerCallback

    class Reader(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs.get("grad_norm", 0) > args.max_grad_norm:
                raise CheckFailed("the log shows a norm above max_grad_norm")

    return Reader()
