"""Parameters that begin to require gradients after `deepspeed.initialize` never move."""

from contextlib import nullcontext

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps, present

UNFROZEN_AT = 1  # the step before which the body is unfrozen; the head trains from the first

FAILURE = Failure(
    title="Parameters unfrozen after `deepspeed.initialize` never move under ZeRO",
    first_seen="plain DeepSpeed",
    since="deepspeed's releases of 2023 (frozen weights have no optimizer state from then on)",
    until="not fixed: ZeRO builds its flat groups from what requires gradients when the engine is made",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # checkpointing has no part in what an optimizer holds
    errors={
        "group-without-weights": r"list index out of range",
        # FSDP2 takes the dtype of a group's gradients from what requires them at first.
        "unreduced-dtype": r"attempting to assign a gradient with dtype '[\w:]+' to a tensor with grad_dtype",
    },
    also_raises=("recomputed-empty",),  # DeepSpeed before 0.19.3: zero3_nonreentrant_frozen_checkpointerror
    variants=(
        Variant("broken", checkpointing=EVERY_MODE),
        Variant("anew", strategies=("single", "zero*")),
        Variant("gathered", strategies=("zero3*",)),
        Variant("train_mode", strategies=("zero*",)),
    ),
    claims={
        "https://github.com/deepspeedai/DeepSpeed/issues/2615": helps(
            "everything trainable from the start, in groups with a learning rate of 0 that is raised later",
            remedy="lr_zero",
        ),
        TRIED_HERE: (
            helps("make the engine anew, once the parameters are unfrozen", "*broken/zero*", remedy="anew"),
            present(
                "give the optimizer the frozen parameters as well, in the group of the others",
                "broken/zero[123]*",
                key="one_group",
            ),
            helps("give the optimizer a group of the frozen parameters alone", remedy="own_group"),
            helps("unfreeze them in `GatheredParameters`", remedy="gathered"),
            helps("call `engine.train()` after it", remedy="train_mode"),
        ),
    },
)


def scenario(remedy, setup):
    """A frozen body below a head that trains: from the second step on, all of it is meant to train."""
    import torch

    from tiny_models.kit import LR, MOMENTUM, Scenario, causal_lm_loss, qwen2, text_batch

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
