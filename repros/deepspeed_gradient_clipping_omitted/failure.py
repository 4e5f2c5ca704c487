"""DeepSpeed clips gradients as its config says, whatever `max_grad_norm` says: without the key at 1.0, or never."""

from faultline.base.errors import CheckFailed
from faultline.catalogue import TRIED_HERE, Failure, Variant, detects, helps, present, trains, variants

FAILURE = Failure(
    title="DeepSpeed ignores `max_grad_norm` if its config has no `gradient_clipping`",
    first_seen="axolotl",
    since="March 2024, as reported; clipped unasked since deepspeed 0.19.3",
    until="not fixed: transformers fills the key in only where the config has it",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in clipping
    errors={"check": r"the log shows a norm above max_grad_norm"},
    variants=(
        Variant("broken", trainer="sft", strategies=("single", "ddp", "zero*", "fsdp1-full", "fsdp2")),
        *variants("auto norm_in_log", trainer="sft", strategies=("ddp", "zero0", "zero1", "zero2", "zero3")),
        *variants("explicit norm_0 norm_1", trainer="sft", strategies=("zero0", "zero1", "zero2", "zero3")),
    ),
    claims={
        "https://github.com/axolotl-ai-cloud/axolotl/issues/1381": (
            helps('`"gradient_clipping": "auto"` in the config', "sft-broken/zero*", remedy="auto"),
            present("`max_grad_norm` alone", "sft-broken/zero*", key="max_grad_norm"),
        ),
        "https://github.com/deepspeedai/DeepSpeed/pull/8068": helps(
            "a number for `gradient_clipping` in the config, or 0.0", "*broken/zero*", remedy="explicit"
        ),
        "https://github.com/deepspeedai/DeepSpeed/issues/6743": detects(
            "a `grad_norm` above `max_grad_norm` in the log shows that gradients aren't clipped",
            "sft-auto",
            remedy="norm_in_log",
        ),
        TRIED_HERE: (
            helps("`max_grad_norm=0`, so that nothing is clipped", "sft-broken", remedy="norm_0"),
            helps(
                "`max_grad_norm=1.0`, which is DeepSpeed's default as well since 0.19.3", "sft-broken", remedy="norm_1"
            ),
            trains("DDP and FSDP clip as they are asked to", "*broken/[df][ds]*"),
        ),
    },
)

# What a user means to clip at, and what the config says; without an entry it says nothing.
MEANT = {"norm_0": 0.0, "norm_1": 1.0}
SAID = {"auto": "auto", "norm_in_log": "auto", "explicit": 0.5}


def scenario(remedy, setup):
    """Nobody asks to clip, and the gradients' norm is above 1."""
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    return Scenario(
        qwen2(), causal_lm_loss, text_batch, deepspeed={"gradient_clipping": 0.0 if remedy == "explicit" else None}
    )


def trainer(variant, arguments, setup):
    """The real trainer, asked to clip in its own arguments."""
    from faultline.trainers import changed_config
    from tiny_models.kit import qwen2, sft_trainer

    arguments = changed_config(arguments, {"gradient_clipping": SAID.get(variant.remedy)}, setup)
    arguments |= {"max_grad_norm": MEANT.get(variant.remedy, 0.5)}
    built = sft_trainer(qwen2(), arguments)
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
