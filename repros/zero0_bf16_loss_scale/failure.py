"""In bf16 DeepSpeed without ZeRO divides gradients by a loss scale that nobody applied."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

PR = "https://github.com/deepspeedai/DeepSpeed/pull/7839"

BISECT = (
    "make bisect FAILURE=zero0_bf16_loss_scale PACKAGE=deepspeed OTHERS=fixed FROM=0.18.3 TO=0.18.9 DIRECTION=fixed"
)

OFF = ("off",)  # checkpointing has no part in how an optimizer scales
BF16 = {"variant": "broken", "strategy": "zero0*", "precision": "bf16"}

FAILURE = Failure(
    title="ZeRO-0 in bf16 hardly moves the weights: gradients are divided by a loss scale that nobody applied",
    records=("https://github.com/deepspeedai/DeepSpeed/issues/7837", PR),
    since="deepspeed 0.17.6 (gradients add up), 0.18.3 at the latest (they are divided as well)",
    until="deepspeed 0.18.6",
    upstream="deepspeedai/DeepSpeed",
    signatures={},
    reported=Reported("deepspeed-0.18.3", "broken", "zero0", precision="bf16", good="deepspeed-0.18.6"),
    fixes=(Turn("deepspeed", "0.18.6", BF16, BISECT),),
    variants=(Variant("broken", checkpointing=OFF, bf16=True),),
    claims={
        "a": Claim("deepspeed 0.18.6 or newer", swap={"stack": "deepspeed-0.18.6"}, where=BF16, source=PR),
        "b": Claim("ZeRO-1 instead of ZeRO-0", swap={"strategy": "zero1"}, where=BF16),
        "c": Claim("fp32 instead of bf16", swap={"precision": "fp32"}, where=BF16),
    },
)


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    return Scenario(qwen2(), causal_lm_loss, text_batch)
