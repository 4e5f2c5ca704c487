"""The model inside DeepSpeed's engine is called, not the engine: ZeRO-3 keeps a step's last micro-batch only."""

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps, variants

SOME = ("single", "zero*", "fsdp2")

FAILURE = Failure(
    title="Accumulating around the engine's forward keeps one micro-batch under ZeRO-3",
    first_seen="`faultline explore`; no report was found",
    since="deepspeed 0.18.3",
    until="not fixed: ZeRO-3 counts micro-batches in the forward pass of its engine",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # checkpointing has no part in how micro-batches are counted
    variants=(
        Variant("broken", "", SOME, checkpointing=EVERY_MODE, text="the loss calls the model that was wrapped"),
        Variant("unwrapped_broken", "", SOME, text="the loss calls `accelerator.unwrap_model(model)`"),
        *variants("counted no_overlap engine redirected one_step", strategies=("single", "zero[23]*")),
    ),
    claims={
        "https://github.com/huggingface/trl/pull/3260": helps("TRL's `_ForwardRedirection`", remedy="redirected"),
        "https://github.com/allenai/open-instruct/pull/1498": helps(
            "ZeRO-2, with `gradient_accumulation_steps` in its config", "*broken/zero3*", strategy="zero2"
        ),
        TRIED_HERE: (
            helps("call the engine, not `engine.module`", remedy="engine"),
            helps("`engine.optimizer.clear_backward_seen_flag()` before each micro-batch", remedy="counted"),
            helps(
                "`engine.step()` after the last micro-batch only, with no accumulation in the config", remedy="one_step"
            ),
            helps("`overlap_comm: false`", remedy="no_overlap"),
            helps("other bucket sizes", "broken/zero3", strategy="zero3-small"),
            helps("parameters on the CPU", "broken/zero3", strategy="zero3-offload-param"),
        ),
    },
)


def scenario(remedy, setup):
    from contextlib import nullcontext

    from tiny_models.kit import Scenario, next_token_loss, qwen2, text_batch

    inside = qwen2()

    def forward(engine, rows):
        if remedy == "engine":
            return engine(input_ids=rows)
        if remedy == "redirected" and engine is not inside:
            from trl.models.utils import _ForwardRedirection

            return _ForwardRedirection()(engine, inside, inside.forward, input_ids=rows)
        if remedy == "counted" and hasattr(engine, "zero_optimization_stage"):
            engine.optimizer.clear_backward_seen_flag()
        return inside(input_ids=rows)

    return Scenario(
        inside,
        lambda engine, batch: next_token_loss(forward(engine, batch["input_ids"]).logits, batch),
        text_batch,
        micro_batches=2,
        accelerate=remedy == "unwrapped_broken",  # whose `unwrap_model` gives the same model
        by_hand=(lambda model, last: nullcontext()) if remedy == "one_step" else None,
        deepspeed={"zero_optimization": {"overlap_comm": False} if remedy == "no_overlap" else {}},
    )
