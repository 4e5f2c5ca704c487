"""DeepSpeed's own gradient accumulation under ZeRO-2 trains on a part of its micro-batches only."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

BISECT = "make bisect FAILURE=zero2_ga_wrong_gradient PACKAGE=deepspeed OTHERS=fixed"

OFF = ("off",)  # checkpointing has no part in how micro-batches are added up
ZERO2 = {"variant": "broken", "strategy": "zero2*"}
# With the optimizer offloaded it is right.
WRONG = [{"variant": "broken", "strategy": name} for name in ("zero2", "zero2-small")]

FAILURE = Failure(
    title="Gradient accumulation under ZeRO-2 gives the wrong gradient (deepspeed 0.17.6 to 0.18.2)",
    records=(
        "https://github.com/deepspeedai/DeepSpeed/issues/7718",
        "https://github.com/deepspeedai/DeepSpeed/issues/7749",
        "https://github.com/deepspeedai/DeepSpeed/issues/7629",
        "https://github.com/huggingface/trl/issues/4540",
        "https://github.com/huggingface/trl/issues/4631",
        "https://github.com/huggingface/accelerate/issues/3877",
    ),
    since="deepspeed 0.17.6",
    until="deepspeed 0.18.3",
    upstream="deepspeedai/DeepSpeed",
    signatures={},
    elsewhere=("static-graph-no-sync",),  # DDP's static graph and `no_sync`, whatever the model
    reported=Reported("deepspeed-0.18.2", "broken", "zero2", good="deepspeed-0.18.3"),
    began=tuple(
        Turn("deepspeed", "0.17.6", where, f"{BISECT} FROM=0.17.4 TO=0.18.0 DIRECTION=introduced") for where in WRONG
    ),
    fixes=tuple(
        Turn("deepspeed", "0.18.3", where, f"{BISECT} FROM=0.18.0 TO=0.18.4 DIRECTION=fixed") for where in WRONG
    ),
    variants=(
        Variant("broken", checkpointing=OFF, needs=("accumulation",)),
        Variant("no_overlap", checkpointing=OFF, strategies=("single", "zero2*")),
    ),
    claims={
        "a": Claim("deepspeed 0.18.3 or newer", swap={"stack": "deepspeed-0.18.3"}, where=ZERO2),
        "a2": Claim("deepspeed 0.17.5 or older", swap={"stack": "deepspeed-0.17.5"}, where=ZERO2),
        "b": Claim("ZeRO-1 instead of ZeRO-2", swap={"strategy": "zero1"}, where=ZERO2),
        "c": Claim("ZeRO-3 instead of ZeRO-2", swap={"strategy": "zero3"}, where=ZERO2),
        "d": Claim(
            "`overlap_comm: false`",
            swap={"remedy": "no_overlap"},
            where=ZERO2,
            source="https://github.com/deepspeedai/DeepSpeed/issues/5294",
        ),
        "e": Claim("fp32 instead of bf16", swap={"precision": "fp32"}, where={**ZERO2, "precision": "bf16"}),
    },
)


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    overlap = {"overlap_comm": False} if remedy == "no_overlap" else {}
    return Scenario(qwen2(), causal_lm_loss, text_batch, micro_batches=2, deepspeed={"zero_optimization": overlap})
