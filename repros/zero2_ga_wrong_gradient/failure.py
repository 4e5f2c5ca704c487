"""DeepSpeed's own gradient accumulation under ZeRO-2 trains on a part of its micro-batches only."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps

DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/issues/5294"

FAILURE = Failure(
    title="ZeRO-2 accumulates the wrong gradient (deepspeed 0.17.6 to 0.18.2)",
    first_seen="trainings whose `grad_norm` dropped, with TRL and accelerate",
    since="deepspeed 0.17.6",
    until="deepspeed 0.18.3",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # checkpointing has no part in how micro-batches are added up
    also_raises=("static-graph-no-sync",),  # DDP's static graph and `no_sync`, whatever the model
    variants=(Variant("no_overlap", strategies=("single", "zero2*")),),
    claims={
        "https://github.com/huggingface/trl/issues/4540": (
            helps("deepspeed 0.18.3 or newer", "broken/zero2*", stack="deepspeed-0.18.3"),
            helps("ZeRO-1 instead of ZeRO-2", "broken/zero2*", strategy="zero1"),
        ),
        "https://github.com/deepspeedai/DeepSpeed/issues/7718": (
            helps("deepspeed 0.17.5 or older", "broken/zero2*", stack="deepspeed-0.17.5"),
            helps("ZeRO-3 instead of ZeRO-2", "broken/zero2*", strategy="zero3"),
        ),
        DEEPSPEED: helps("`overlap_comm: false`", "broken/zero2*", remedy="no_overlap"),
        TRIED_HERE: helps("fp32 instead of bf16", "broken/zero2*/*/bf16", precision="fp32"),
    },
)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    overlap = {"overlap_comm": False} if remedy == "no_overlap" else {}
    return Scenario(qwen2(), causal_lm_loss, text_batch, micro_batches=2, deepspeed={"zero_optimization": overlap})
