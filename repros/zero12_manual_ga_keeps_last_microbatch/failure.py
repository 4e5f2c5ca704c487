"""Several `engine.backward()` before one `engine.step()`: ZeRO-1 and ZeRO-2 keep the last micro-batch only."""

from contextlib import nullcontext

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps

DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/issues/6793"

FAILURE = Failure(
    title="Accumulating by hand keeps only the last micro-batch under ZeRO-1 and ZeRO-2",
    first_seen="open-instruct's training loop",
    since="deepspeed 0.18.3 (the oldest that was tried)",
    until="not fixed: without gradient_accumulation_steps in its config, each backward ends a step for the engine",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # checkpointing has no part in how micro-batches are added up
    errors={"no-sync-refused": r"no_sync context manager is incompatible with gradient partitioning"},
    # Of DDP: unused parameters with reentrant checkpointing, and a static graph with `no_sync`; and what a remedy
    # that isn't one ends in.
    also_raises=("static-graph-no-sync", "marked-ready-twice", "no-sync-refused"),
    variants=(Variant("broken", checkpointing=EVERY_MODE),),
    claims={
        "https://github.com/allenai/open-instruct/pull/1498": (
            helps(
                "`engine.set_gradient_accumulation_boundary(last)` before each backward pass",
                "*broken/zero*",
                remedy="boundary",
            ),
            helps("ZeRO-3", "*broken/zero[12]*", strategy="zero3"),
        ),
        "https://www.deepspeed.ai/docs/config-json/": helps(
            "`gradient_accumulation_steps` in the config, and `engine.step()` after each micro-batch", remedy="native"
        ),
        DEEPSPEED: helps("`engine.no_sync()` around all micro-batches but the last", remedy="no_sync"),
        "https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation": helps(
            "`accelerator.accumulate(model)`, with `gradient_accumulation_steps` in the config as well",
            remedy="accumulate",
        ),
        TRIED_HERE: (
            helps("ZeRO-1 instead of ZeRO-2", "*broken/zero2*", strategy="zero1"),
            helps("`overlap_comm: false`", "*broken/zero*", remedy="no_overlap"),
            helps("other bucket sizes", "*broken/zero2", strategy="zero2-small"),
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
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

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
