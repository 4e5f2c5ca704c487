"""Parameters that begin to require gradients after `deepspeed.initialize` never move."""

from contextlib import nullcontext

from faultline.catalogue import Claim, Failure, Mechanism, Variant

OFF = ("off",)  # checkpointing has no part in what an optimizer holds
UNFREEZES = r"requires_grad_?\(True\)|\.requires_grad = True|[uU]n_?fr(?:ee|o)z"
UNFROZEN_AT = 1  # the step before which the body is unfrozen; the head trains from the first

FAILURE = Failure(
    title="Parameters that begin to require gradients after `deepspeed.initialize` never move under ZeRO",
    records=(
        "https://github.com/deepspeedai/DeepSpeed/issues/5639",
        "https://github.com/deepspeedai/DeepSpeed/issues/4055",
        "https://github.com/deepspeedai/DeepSpeed/pull/2653",
        "https://github.com/deepspeedai/DeepSpeed/issues/2615",
    ),
    since="deepspeed's releases of 2023 (frozen weights have no optimizer state from then on)",
    until="not fixed: ZeRO builds its flat groups from what requires gradients when the engine is made",
    upstream="deepspeedai/DeepSpeed",
    report="broken/zero2/*",
    found_by=("unfrozen",),
    signatures={
        "group-without-weights": r"list index out of range",
        # FSDP2 takes the dtype of a group's gradients from what requires them at first.
        "unreduced-dtype": r"attempting to assign a gradient with dtype '[\w:]+' to a tensor with grad_dtype",
    },
    elsewhere=("recomputed-empty",),  # DeepSpeed before 0.19.3: zero3_nonreentrant_frozen_checkpointerror
    # The frame that raises is the same whyever a group has no trained parameter, or a gradient has another dtype.
    context={"group-without-weights": UNFREEZES, "unreduced-dtype": UNFREEZES},
    told_by={
        "group-without-weights": "a parameter that is frozen when the engine is made, and unfrozen later",
        "unreduced-dtype": "a parameter that is frozen when it is wrapped, and unfrozen later",
    },
    mechanism={
        "group-without-weights": Mechanism(
            "a group of the optimizer in which no parameter requires gradients, of which ZeRO makes no flat weights",
            r"stage_1_and_2\.py\", line \d{1,6}, in __init__\n[^\n]*bit16_groups\[",
        ),
        "unreduced-dtype": Mechanism(
            "a gradient that FSDP2 reduced in another dtype than its parameter's", r", in foreach_reduce\n"
        ),
    },
    variants=(
        Variant("broken", look="`requires_grad_(True)` after `deepspeed.initialize`, as gradual unfreezing does it"),
        Variant("lr_zero", checkpointing=OFF),
        Variant("anew", checkpointing=OFF, strategies=("single", "zero*")),
        Variant("own_group", checkpointing=OFF),
        Variant("gathered", checkpointing=OFF, strategies=("zero3*",)),
        Variant("train_mode", checkpointing=OFF, strategies=("zero*",)),
    ),
    claims={
        "a": Claim(
            "everything trainable from the start, in groups with a learning rate of 0 that is raised later",
            swap={"remedy": "lr_zero"},
            general="let all of it require gradients from the start, with a learning rate of 0 until it is to move",
        ),
        "b": Claim(
            "make the engine anew, once the parameters are unfrozen",
            swap={"remedy": "anew"},
            where={"strategy": "zero*"},
        ),
        "c": Claim(
            "give the optimizer the frozen parameters as well, in the group of the others",
            kind="present",
            where={"variant": "broken", "strategy": "zero[123]*"},
        ),
        "c2": Claim("give the optimizer a group of the frozen parameters alone", swap={"remedy": "own_group"}),
        "d": Claim("unfreeze them in `GatheredParameters`", swap={"remedy": "gathered"}),
        "e": Claim("call `engine.train()` after it", swap={"remedy": "train_mode"}),
    },
)


def scenario(remedy, setup):
    """A frozen body below a head that trains: from the second step on, all of it is meant to train."""
    import torch

    from faultline.scenario import LR, MOMENTUM, Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    model = qwen2()
    model.model.requires_grad_(remedy == "lr_zero")
    optimizers = []

    def optimizer(model):
        """One that holds every parameter, also those that are frozen for now."""
        groups = [{"params": list(model.parameters())}]
        if remedy in ("lr_zero", "own_group"):
            head = [p for name, p in model.named_parameters() if "lm_head" in name]
            body = [p for name, p in model.named_parameters() if "lm_head" not in name]
            groups = [{"params": head}, {"params": body, "lr": 0.0 if remedy == "lr_zero" else LR}]
        optimizers.append(torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM))
        return optimizers[-1]

    def before_step(engine, step):
        if step != UNFROZEN_AT:
            return None
        if remedy == "lr_zero":
            optimizers[-1].param_groups[1]["lr"] = LR
            return None
        with gathered(model) if remedy == "gathered" else nullcontext():
            model.requires_grad_(True)
        if remedy == "train_mode":
            engine.train()
        if remedy == "anew":
            if hasattr(engine, "destroy"):
                engine.destroy()
            return model
        return None

    return Scenario(model, causal_lm_loss, text_batch, optimizer=optimizer, before_step=before_step)


def gathered(model):
    import deepspeed

    return deepspeed.zero.GatheredParameters(list(model.parameters()), modifier_rank=0)
