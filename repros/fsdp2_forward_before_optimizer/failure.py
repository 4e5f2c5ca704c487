"""An optimizer that is made after a forward pass of a `fully_shard` model holds dead parameters: nothing trains."""

from faultline.catalogue import Claim, Failure, Variant

OFF = ("off",)
FSDP2 = ("single", "fsdp2*")

FAILURE = Failure(
    title="An optimizer made after a forward pass holds dead parameters under FSDP2",
    records=(
        "https://github.com/pytorch/pytorch/issues/149205",
        "https://github.com/pytorch/pytorch/issues/131965",
        "https://github.com/pytorch/pytorch/issues/107843",
        "https://github.com/huggingface/accelerate/issues/2665",
        "https://github.com/huggingface/accelerate/pull/3394",
    ),
    since="torch's first release with fully_shard",
    until="not fixed: what isn't resharded after a forward pass stays unsharded until the backward pass, by design",
    upstream="pytorch/pytorch",
    signatures={},
    variants=(
        Variant(
            "broken",
            checkpointing=OFF,
            look="a forward pass (a generation, an evaluation) before the optimizer is made",
        ),
        Variant("with_grad", checkpointing=OFF, strategies=FSDP2),
        Variant("optimizer_first", checkpointing=OFF, strategies=FSDP2),
        Variant("reshard", checkpointing=OFF, strategies=FSDP2),
        Variant("root_reshards", checkpointing=OFF, strategies=FSDP2),
        Variant("zero_grad", checkpointing=OFF, strategies=FSDP2),
        Variant("scheduler", checkpointing=OFF, strategies=FSDP2),
        Variant("train_mode", checkpointing=OFF, strategies=FSDP2),
    ),
    claims={
        "a": Claim("make the optimizer right after `fully_shard`", swap={"remedy": "optimizer_first"}),
        "b": Claim("`model.reshard()` after the forward pass", swap={"remedy": "reshard"}),
        "c": Claim("`reshard_after_forward=True` on the root", swap={"remedy": "root_reshards"}),
        "d": Claim("`zero_grad()` after it", swap={"remedy": "zero_grad"}),
        "e": Claim("make the scheduler anew", swap={"remedy": "scheduler"}),
        "f": Claim("`model.train()` after it", swap={"remedy": "train_mode"}),
        "g": Claim("without `torch.no_grad()` around it", swap={"remedy": "with_grad"}),
    },
)


def scenario(remedy, setup):
    import torch

    from faultline.scenario import Scenario, causal_lm_loss, sgd
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    def forward(model):
        """What people do before they train: see what the model says so far."""
        rows = text_batch(0, setup.rank, setup.world_size)["input_ids"].to(setup.device)
        if remedy == "root_reshards" and hasattr(model, "set_reshard_after_forward"):
            model.set_reshard_after_forward(True, recurse=False)
        with torch.set_grad_enabled(remedy == "with_grad"):
            model(input_ids=rows)

    def optimizer(model):
        made = sgd(model) if remedy == "optimizer_first" else None
        forward(model)
        if remedy == "reshard" and hasattr(model, "reshard"):
            model.reshard()
        if remedy == "zero_grad":
            model.zero_grad()
        if remedy == "train_mode":
            model.train()
        made = made or sgd(model)
        if remedy == "scheduler":
            torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1.0)
        return made

    return Scenario(qwen2(), causal_lm_loss, text_batch, optimizer=optimizer)
