"""In bf16 DeepSpeed without ZeRO divides gradients by a loss scale that nobody applied."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps

DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/issues/7837"
PR = "https://github.com/deepspeedai/DeepSpeed/pull/7839"

FAILURE = Failure(
    title="ZeRO-0 in bf16 divides gradients by a loss scale that nobody applied",
    since="deepspeed 0.17.6 (gradients add up), 0.18.3 at the latest (they are divided as well)",
    until="deepspeed 0.18.6",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # checkpointing has no part in how an optimizer scales
    variants=(Variant("broken", bf16=True),),
    claims={
        PR: helps("deepspeed 0.18.6 or newer", "broken/zero0*/*/bf16", stack="deepspeed-0.18.6"),
        DEEPSPEED: helps("ZeRO-1 instead of ZeRO-0", "broken/zero0*/*/bf16", strategy="zero1"),
        TRIED_HERE: helps("fp32 instead of bf16", "broken/zero0*/*/bf16", precision="fp32"),
    },
)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    return Scenario(qwen2(), causal_lm_loss, text_batch)
