"""`dcp.load` fills what a new optimizer's `state_dict()` has, and that has no state: the momentum starts again."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

KEMPNER = "https://github.com/KempnerInstitute/KempnerForge/pull/115"
RECIPE = "https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html"
TITAN = "https://github.com/pytorch/torchtitan/pull/4382"
SOME = ("single", "ddp", "fsdp2")

FAILURE = Failure(
    title="`dcp.load` into a new optimizer's `state_dict()` loads no momentum",
    first_seen="KempnerForge's `CheckpointManager`",
    since="torch 2.2, whose `dcp.load` fills the state dict that it is given",
    until="not fixed: what the checkpoint has beyond that state dict is not read, without a warning",
    checkpointing=("off",),  # which has no part in what is loaded
    resumed=True,
    variants=(Variant("broken", strategies=SOME), *variants("get_and_set stateful empty_step strict", "", SOME)),
    claims={
        KEMPNER: helps("`get_state_dict` before `dcp.load`, and `set_state_dict` after it", remedy="get_and_set"),
        RECIPE: helps("a `Stateful` object around these two", remedy="stateful"),
        TITAN: helps("a step without gradients before `dcp.load`, which makes the state", remedy="empty_step"),
        TRIED_HERE: helps("`DefaultLoadPlanner(allow_partial_load=False)`", remedy="strict"),
    },
)


def scenario(remedy, setup):
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    class App(checkpoint.stateful.Stateful):
        def __init__(self, wrapped):
            self.of = wrapped.model, wrapped.optimizer

        def state_dict(self):
            return dict(zip(("model", "optimizer"), get_state_dict(*self.of), strict=True))

        def load_state_dict(self, state):
            set_state_dict(*self.of, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def held(wrapped):
        if remedy == "stateful":
            return {"app": App(wrapped)}
        if remedy == "get_and_set":
            return App(wrapped).state_dict()
        return {"model": wrapped.model.state_dict(), "optimizer": wrapped.optimizer.state_dict()}

    def keep(save, wrapped, folder):
        checkpoint.save(held(wrapped), checkpoint_id=folder / "dcp")

    def resume(load, wrapped, folder):
        if remedy == "empty_step":
            materialise(wrapped.optimizer)
        state = held(wrapped)
        planner = checkpoint.DefaultLoadPlanner(allow_partial_load=False) if remedy == "strict" else None
        checkpoint.load(state, checkpoint_id=folder / "dcp", planner=planner)
        if remedy == "get_and_set":
            App(wrapped).load_state_dict(state)
        elif remedy != "stateful":
            wrapped.model.load_state_dict(state["model"])
            wrapped.optimizer.load_state_dict(state["optimizer"])

    return Scenario(qwen2(), causal_lm_loss, text_batch, keep=keep, resume=resume)


def materialise(optimizer):
    """Make the optimizer's state by a step with gradients of zero, which moves nothing."""
    import torch

    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
