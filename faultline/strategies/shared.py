"""What several strategies share: names, bytes, collectives, steps, schedules and checkpoints."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from faultline.base.errors import Impossible
from faultline.strategies import Gradients, Setup, Tensors, Wrapped

SHARES = "_shares_parameters"  # a module with a parameter that something outside of it has as well
ONLY_UNIT = "_is_the_only_unit"  # a model that is to be FSDP's only unit
PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def clean(name: str) -> str:
    """A parameter's name as the bare model knows it."""
    for prefix in PREFIXES:
        name = name.replace(prefix, "")
    return name.removeprefix("module.")


def parameter_map(model: Any) -> Tensors:
    """Parameters by clean name; tied parameters appear once."""
    return {clean(name): parameter for name, parameter in model.named_parameters()}


def nbytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def blocks(model: Any) -> set[type]:
    """The classes that a model names as indivisible: the usual units of FSDP."""
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    return {type(module) for module in model.modules() if type(module).__name__ in names}


def units(model: Any) -> list[Any]:
    """The blocks that become FSDP units, outer before inner: those that `fsdp_units.keep_together` didn't mark.

    Raises Impossible where there is none, unless the model is to be the only unit: that is no sharding by blocks.
    """
    if least_units(model) == 1:
        return []
    classes = tuple(blocks(model))
    whole_blocks = [m for m in model.modules() if isinstance(m, classes) and not getattr(m, SHARES, False)]
    if not whole_blocks:
        raise Impossible("no part of the model can be an FSDP unit of its own, so nothing would be sharded by blocks")
    return whole_blocks


def fsdp_units(model: Any) -> list[Any]:
    """The modules that `fully_shard` made units of."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def least_units(model: Any) -> int:
    """How many units FSDP has to have at least, the root among them."""
    return 1 if getattr(model, ONLY_UNIT, False) else 2


def all_gather(shards: list[Any], group: Any = None) -> list[Any]:
    """The shards of every rank of a group, in one collective: tensors [n] of the same n on all to tensors [size, n]."""
    import torch
    import torch.distributed as dist

    if not shards:
        return []
    # Complex numbers as pairs: in one tensor with others they would make all of it complex.
    flat = [(torch.view_as_real(each) if each.is_complex() else each).detach().flatten() for each in shards]
    local = torch.cat(flat)
    size = dist.get_world_size(group)
    everyone = local.new_empty(size * local.numel())
    dist.all_gather_into_tensor(everyone, local, group=group)
    parts = everyone.view(size, -1).split([each.numel() for each in flat], dim=1)
    return [
        torch.view_as_complex(part.contiguous().view(size, -1, 2)) if shard.is_complex() else part
        for part, shard in zip(parts, shards, strict=True)
    ]


def whole_tensors(tensors: Tensors) -> Tensors:
    """Whole tensors from DTensors, those that FSDP2 shards with one collective instead of one for each.

    It shards dimension 0 into chunks of equal size of which the last ranks
    may lack rows: padded to that size and put together, the rows are in order.
    """
    import torch
    from torch.distributed.tensor import DTensor, Replicate, Shard

    ready: Tensors = {}
    sharded: dict[Any, Tensors] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not isinstance(tensor, DTensor):
                ready[name] = tensor.clone()
            elif tensor.placements in ((Shard(0),), (Replicate(), Shard(0))):
                group = tensor.device_mesh.get_group(tensor.device_mesh.ndim - 1)
                rows = -(-tensor.shape[0] // group.size())
                local = tensor.to_local()
                sharded.setdefault(group, {})[name] = torch.cat(
                    [local, local.new_zeros(rows - len(local), *local.shape[1:])]
                )
            else:
                ready[name] = tensor.full_tensor()
    for group, padded in sharded.items():
        for name, shards in zip(padded, all_gather(list(padded.values()), group), strict=True):
            shape = tensors[name].shape
            ready[name] = shards.reshape(-1, *shape[1:])[: shape[0]]
    return {name: ready[name] for name in tensors}


def gathered_parameters(model: Any) -> Tensors:
    """The whole parameters of a model in DTensors."""
    return whole_tensors(parameter_map(model))


def gathered_gradients(model: Any) -> Gradients:
    return whole_tensors({name: p.grad for name, p in parameter_map(model).items() if p.grad is not None})


def whole_parameters(model: Any) -> Tensors:
    """The parameters of a model that every rank holds whole."""
    return {name: parameter.detach() for name, parameter in parameter_map(model).items()}


def whole_gradients(model: Any) -> Gradients:
    return {name: parameter.grad for name, parameter in parameter_map(model).items()}


def plain_backward(micro_batches: int) -> Callable[..., None]:
    """Backward of one of several micro-batches, whose mean is the step's loss, as a loop without an engine does it."""
    return lambda loss, **keywords: (loss / micro_batches).backward(**keywords)


def no_sync(model: Any) -> Callable[[bool], AbstractContextManager[Any]]:
    """Gradient accumulation as DDP and FSDP1 document it: gradients are reduced with the last micro-batch only."""
    return lambda last: nullcontext() if last else model.no_sync()


def plain_step(optimizer: Any, scheduler: Any = None) -> Callable[[], None]:
    """Step and clear, as a training loop without an engine does."""

    def step() -> None:
        optimizer.step()
        if scheduler:
            scheduler.step()
        optimizer.zero_grad()

    return step


def stepped(optimizer: Any, setup: Setup) -> dict[str, Any]:
    """The fields of `Wrapped` for a loop that steps its optimizer itself, with its schedule if it has one."""
    scheduler = schedule(optimizer) if setup.scheduled else None
    return {"step": plain_step(optimizer, scheduler), "optimizer": optimizer, "scheduler": scheduler}


def schedule(optimizer: Any) -> Any:
    """A learning rate that falls by a fifth of the first with each step, so that one that starts again is seen."""
    from torch.optim.lr_scheduler import LambdaLR

    return LambdaLR(optimizer, lambda step: 1 - step / 5)


def save_whole(wrapped: Wrapped, folder: Path) -> None:
    """Rank 0 saves model and optimizer, of which every rank holds all."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_rank() == 0:
        state = {"model": wrapped.model.state_dict(), "optimizer": wrapped.optimizer.state_dict()}
        torch.save(state, folder / "whole.pt")


def load_whole(wrapped: Wrapped, folder: Path) -> None:
    import torch

    state = torch.load(folder / "whole.pt")
    wrapped.model.load_state_dict(state["model"])
    wrapped.optimizer.load_state_dict(state["optimizer"])


def save_shards(wrapped: Wrapped, folder: Path) -> None:
    """Every rank saves its shards of model and optimizer, by torch's distributed checkpoints (DCP)."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(wrapped.model, wrapped.optimizer)
    checkpoint.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder / "shards")


def load_shards(wrapped: Wrapped, folder: Path) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = get_state_dict(wrapped.model, wrapped.optimizer)
    state = {"model": model, "optimizer": optimizer}
    checkpoint.load(state, checkpoint_id=folder / "shards")
    set_state_dict(
        wrapped.model, wrapped.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
