"""Parameters that begin to require gradients once DDP has wrapped the model train on each rank's own data."""

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps, variants

UNFROZEN_AT = 1  # the step before which the body is unfrozen; the head trains from the first

FAILURE = Failure(
    title="Parameters unfrozen once DDP has wrapped the model are never synchronised",
    first_seen="plain torch, and Lightning's `BackboneFinetuning`",
    since="torch's first DistributedDataParallel (reported in 2018)",
    until="not fixed: DDP's hooks are for what requires gradients when it is made",
    checkpointing=("off",),
    errors={
        # To ZeRO-3's optimizer a parameter outside of its groups is empty.
        "empty-in-step": r"The size of tensor a \(0\) must match the size of tensor b",
    },
    # zero_unfreeze_after_initialize, as FSDP2 takes the dtype of a group's gradients from what requires them at first,
    # and zero3_nonreentrant_frozen_checkpointerror
    also_raises=("unreduced-dtype", "recomputed-empty"),
    variants=(
        Variant("broken", checkpointing=EVERY_MODE),
        *variants("anew lr_zero from_the_start", strategies=("single", "ddp*")),
    ),
    claims={
        "https://discuss.pytorch.org/t/90736": helps("unfreeze first, then wrap the model (anew)", remedy="anew"),
        "https://github.com/Lightning-AI/pytorch-lightning/issues/20340": helps(
            "keep it trainable, with a learning rate of 0 until then", remedy="lr_zero"
        ),
        TRIED_HERE: (
            helps("train everything from the start", remedy="from_the_start"),
            helps("`find_unused_parameters=True`", "*broken/ddp", strategy="ddp-find-unused"),
            helps("`static_graph=True`", "*broken/ddp", strategy="ddp-static-graph"),
            helps("FSDP2", "*broken/ddp*", strategy="fsdp2"),
        ),
    },
)


def scenario(remedy, setup):
    """A frozen body below a head that trains; from the second step on the optimizer gets the body as a group."""
    import torch

    from tiny_models.kit import LR, MOMENTUM, Scenario, causal_lm_loss, qwen2, text_batch

    bare = qwen2()
    bare.model.requires_grad_(remedy in ("lr_zero", "from_the_start"))
    optimizers = []

    def body(model):
        return [p for name, p in model.named_parameters() if "lm_head" not in name]

    def optimizer(model):
        head = [p for name, p in model.named_parameters() if "lm_head" in name]
        made = torch.optim.SGD(head, lr=LR, momentum=MOMENTUM)
        if body(model)[0].requires_grad:
            made.add_param_group({"params": body(model), "lr": 0.0 if remedy == "lr_zero" else LR})
        optimizers.append(made)
        return made

    def before_step(model, step):
        if step != UNFROZEN_AT or remedy == "from_the_start":
            return None
        if remedy == "lr_zero":
            optimizers[-1].param_groups[1]["lr"] = LR
            return None
        bare.model.requires_grad_(True)
        if remedy == "anew":
            return bare
        optimizers[-1].add_param_group({"params": body(model)})
        return None

    return Scenario(bare, causal_lm_loss, text_batch, optimizer=optimizer, before_step=before_step)
