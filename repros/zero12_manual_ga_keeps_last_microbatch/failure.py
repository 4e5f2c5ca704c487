"""Several `engine.backward()` before one `engine.step()`: ZeRO-1 and ZeRO-2 keep the last micro-batch only."""

from contextlib import nullcontext

from faultline.catalogue import Claim, Failure, Variant

OFF = ("off",)  # checkpointing has no part in how micro-batches are added up

FAILURE = Failure(
    title="Gradient accumulation by hand keeps only the last micro-batch under ZeRO-1 and ZeRO-2",
    records=(
        "https://github.com/allenai/open-instruct/pull/1498",
        "https://github.com/huggingface/accelerate/issues/1970",
        "https://github.com/huggingface/accelerate/issues/3877",
    ),
    since="deepspeed 0.18.3 (the oldest that was tried)",
    until="not fixed: without gradient_accumulation_steps in its config, each backward ends a step for the engine",
    upstream="deepspeedai/DeepSpeed",
    signatures={
        "no-sync-refused": r"no_sync context manager is incompatible with gradient partitioning",
    },
    # DDP's own: unused parameters with reentrant checkpointing, and a static graph with `no_sync`; and what a remedy
    # that isn't one ends in.
    elsewhere=("static-graph-no-sync", "marked-ready-twice", "no-sync-refused"),
    variants=(
        Variant("broken", look="a loop with several `engine.backward(loss)` before each `engine.step()`"),
        Variant("boundary", checkpointing=OFF, strategies=("zero*",)),
        Variant("native", checkpointing=OFF),
        Variant("no_sync", checkpointing=OFF),
        Variant("accumulate", checkpointing=OFF),
        Variant("no_overlap", checkpointing=OFF, strategies=("zero*",)),
    ),
    claims={
        "a": Claim(
            "`engine.set_gradient_accumulation_boundary(last)` before each backward pass",
            swap={"remedy": "boundary"},
            where={"strategy": "zero*"},
        ),
        "b": Claim(
            "`gradient_accumulation_steps` in the config, and `engine.step()` after each micro-batch",
            swap={"remedy": "native"},
        ),
        "c": Claim(
            "`engine.no_sync()` around all micro-batches but the last",
            swap={"remedy": "no_sync"},
        ),
        "c2": Claim(
            "`accelerator.accumulate(model)`, with `gradient_accumulation_steps` in the config as well",
            swap={"remedy": "accumulate"},
        ),
        "d": Claim("ZeRO-1 instead of ZeRO-2", swap={"strategy": "zero1"}, where={"strategy": "zero2*"}),
        "e": Claim("ZeRO-3", swap={"strategy": "zero3"}, where={"strategy": "zero[12]*"}),
        "f": Claim("`overlap_comm: false`", swap={"remedy": "no_overlap"}, where={"strategy": "zero*"}),
        "g": Claim(
            "other bucket sizes",
            swap={"strategy": "zero2-small"},
            where={"strategy": "zero2"},
        ),
    },
)


def plain(model, last):
    return nullcontext()


def boundary(model, last):
    model.set_gradient_accumulation_boundary(last)
    return nullcontext()


def no_sync(model, last):
    return nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync()


LOOPS = {"boundary": boundary, "native": None, "no_sync": no_sync, "accumulate": None}


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    overlap = {"overlap_comm": False} if remedy == "no_overlap" else {}
    return Scenario(
        qwen2(),
        causal_lm_loss,
        text_batch,
        micro_batches=2,
        by_hand=LOOPS.get(remedy, plain),
        accelerate=remedy == "accumulate",
        deepspeed={"zero_optimization": overlap},
    )
