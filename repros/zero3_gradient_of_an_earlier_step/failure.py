"""A weight that takes no part in a step is moved by the gradient of an earlier step, under ZeRO-3 and with offload."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

SOME = ("single", "ddp-find-unused", "zero*", "fsdp*")
TRL = "https://github.com/huggingface/trl/issues/3207"

FAILURE = Failure(
    title="ZeRO-3 steps with the last gradient of weights that took no part in a step",
    first_seen="`faultline explore`'s findings, tried with a vision tower; no report was found",
    since="deepspeed 0.17.5 (the oldest that was tried)",
    until="not fixed: the buffers of gradients are neither cleared nor left out",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),
    # Of `zero_term`, outside of the forward pass.
    also_raises=("empty-gradient", "mixed-dtensor"),
    variants=(
        Variant("broken", "", SOME, text="Gemma3 has images in the first step, and text alone from then on"),
        *variants("touch_everything cleared zero_term no_overlap", strategies=SOME),
    ),
    claims={
        TRL: helps("an image in every row, so that every parameter takes part", remedy="touch_everything"),
        "https://github.com/huggingface/trl/issues/2889": helps(
            "add `0 * parameter.sum()` of each to the loss", "*broken/zero*", remedy="zero_term"
        ),
        TRIED_HERE: (
            helps("`engine.optimizer.grad_partitions_flat_buffer.zero_()` after each step", remedy="cleared"),
            helps("ZeRO-2 without offload", "*broken/zero3*", strategy="zero2"),
            helps("FSDP2", "*broken/zero*", strategy="fsdp2"),
            helps("`overlap_comm: false`", "*broken/zero*", remedy="no_overlap"),
            helps("other bucket sizes", "*broken/zero3", strategy="zero3-small"),
        ),
    },
)

UNUSED = ("vision_tower", "multi_modal_projector")


def sgd(model):
    """Without momentum, which would move a weight whose gradient is zero."""
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.05)


def scenario(remedy, setup):
    from tiny_models.data import image_text_batch
    from tiny_models.gemma3 import gemma3
    from tiny_models.kit import Scenario, next_token_loss

    def batch(step, rank, world_size):
        images = "dummy" if step == 0 or remedy == "touch_everything" else "none"
        return image_text_batch(step, rank, world_size, images)

    def loss(model, batch):
        total = next_token_loss(model(**batch["inputs"]).logits, batch)
        if remedy == "zero_term" and not setup.reference:
            parts = [weight for name, weight in model.named_parameters() if any(part in name for part in UNUSED)]
            total = total + sum(0 * weight.sum() for weight in parts)
        return total

    def clear(model, step):
        if remedy == "cleared" and hasattr(getattr(model, "optimizer", None), "grad_partitions_flat_buffer"):
            model.optimizer.grad_partitions_flat_buffer.zero_()

    overlap = {"overlap_comm": False} if remedy == "no_overlap" else {}
    return Scenario(gemma3(), loss, batch, optimizer=sgd, before_step=clear, deepspeed={"zero_optimization": overlap})
