"""An optimizer that is made after a forward pass of a `fully_shard` model holds dead parameters: nothing trains."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

DOCS = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
PYTORCH = "https://github.com/pytorch/pytorch/issues/154655"
PYTORCH_154704 = "https://github.com/pytorch/pytorch/pull/154704"

FAILURE = Failure(
    title="An optimizer made after a forward pass holds dead parameters under FSDP2",
    first_seen="plain torch with `fully_shard`",
    since="torch's first release with fully_shard",
    until="not fixed: what isn't resharded after a forward pass stays unsharded until the backward pass, by design",
    upstream="pytorch/pytorch",
    checkpointing=("off",),
    variants=(
        *variants(
            "with_grad optimizer_first reshard root_reshards zero_grad scheduler", strategies=("single", "fsdp2*")
        ),
        Variant("train_mode", strategies=("single", "fsdp2*")),
    ),
    claims={
        DOCS: helps("make the optimizer right after `fully_shard`", remedy="optimizer_first"),
        PYTORCH: helps("`model.reshard()` after the forward pass", remedy="reshard"),
        PYTORCH_154704: helps("`reshard_after_forward=True` on the root", remedy="root_reshards"),
        TRIED_HERE: (
            helps("`zero_grad()` after it", remedy="zero_grad"),
            helps("make the scheduler anew", remedy="scheduler"),
            helps("`model.train()` after it", remedy="train_mode"),
            helps("without `torch.no_grad()` around it", remedy="with_grad"),
        ),
    },
)


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, sgd, text_batch

    def forward(model):
        """What people do before they train: see what the model says so far."""
        rows = text_batch(0, setup.data_rank, setup.data_world)["input_ids"].to(setup.device)
        if remedy == "root_reshards" and hasattr(model, "set_reshard_after_forward"):
            model.set_reshard_after_forward(True, recurse=False)
        with torch.set_grad_enabled(remedy == "with_grad"):
            model(input_ids=rows)

    def optimizer(model):
        if remedy == "optimizer_first":
            made = sgd(model)
        forward(model)
        if remedy == "reshard" and hasattr(model, "reshard"):
            model.reshard()
        if remedy == "zero_grad":
            model.zero_grad()
        if remedy == "train_mode":
            model.train()
        if remedy != "optimizer_first":
            made = sgd(model)
        if remedy == "scheduler":
            torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0)
        return made

    return Scenario(qwen2(), causal_lm_loss, text_batch, optimizer=optimizer)
