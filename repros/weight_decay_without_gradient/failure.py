"""AdamW decays, and goes on moving, weights that have no gradient, where an engine makes zeros of what is missing."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

SOME = ("single", "ddp-find-unused", "zero*", "fsdp*")
PYTORCH = "https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html"
TRL = "https://github.com/huggingface/trl/issues/3207"

FAILURE = Failure(
    title="AdamW decays weights that took no part in a step, under ZeRO and FSDP1",
    first_seen="`faultline explore`; no report was found",
    since="deepspeed 0.17.5 (the oldest that was tried)",
    until="not fixed: the gradients of a partition are one flat tensor, in which a missing one is zero",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),
    # Of `zero_term`, outside of the forward pass.
    errors={"empty-gradient": r"0 != \d+ Cannot reduce scatter gradients whose size is not same as the params"},
    also_raises=("empty-gradient", "mixed-dtensor"),
    variants=(
        Variant("broken", "", SOME, text="Gemma3 trains on text, and its vision tower on nothing"),
        Variant("once_broken", "", SOME, text="there are images in the first step, and none from then on"),
        *variants("freeze_unused no_decay zero_term", strategies=SOME),
    ),
    claims={
        TRL: (
            helps("freeze the unused parameters (`requires_grad=False`)", remedy="freeze_unused"),
            helps("`find_unused_parameters=True`, and DDP", "*broken/zero*", strategy="ddp-find-unused"),
        ),
        PYTORCH: helps("a parameter group with `weight_decay=0` for them", remedy="no_decay"),
        "https://github.com/huggingface/trl/issues/2889": helps(
            "add `0 * parameter.sum()` of each to the loss", remedy="zero_term"
        ),
        TRIED_HERE: (
            helps("FSDP2", "*broken/fsdp1*", strategy="fsdp2"),
            helps("ZeRO-3", "*broken/zero[12]*", strategy="zero3"),
            helps("`NO_SHARD`", "*broken/fsdp1*", strategy="fsdp1-no-shard"),
        ),
    },
)

UNUSED = ("vision_tower", "multi_modal_projector")


def unused(name):
    return any(part in name for part in UNUSED)


def adamw(remedy, model):
    import torch

    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in named if remedy != "no_decay" or not unused(name)]
    others = [parameter for name, parameter in named if remedy == "no_decay" and unused(name)]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    # An epsilon of this size keeps a step from being the sign of what rounding left.
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01, eps=1e-3, weight_decay=0.1)


def scenario(remedy, setup):
    from functools import partial

    from tiny_models.data import image_text_batch
    from tiny_models.gemma3 import gemma3
    from tiny_models.kit import Scenario, next_token_loss

    model = gemma3()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(remedy != "freeze_unused" or not unused(name))

    def batch(step, rank, world_size):
        return image_text_batch(step, rank, world_size, "none" if step or remedy != "once_broken" else "dummy")

    def loss(model, batch):
        total = next_token_loss(model(**batch["inputs"]).logits, batch)
        if remedy == "zero_term" and not setup.reference:
            total = total + sum(0 * weight.sum() for name, weight in model.named_parameters() if unused(name))
        return total

    return Scenario(model, loss, batch, optimizer=partial(adamw, remedy))
