"""Whole weights and gradients of a model under DeepSpeed, by one collective in place of many small ones."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from faultline.strategies import Gradients, Tensors
from faultline.strategies.shared import all_gather, clean


@contextmanager
def one_collective() -> Iterator[None]:
    """Put off the collectives of DeepSpeed's `safe_get_*` functions, which make one for each parameter, and
    make one of all of them at the end: the tensors that the functions returned are filled then."""
    from unittest import mock

    import torch
    from deepspeed import comm

    reductions: list[Any] = []
    gathers: list[tuple[Any, Any]] = []

    def everyone(group: Any) -> None:
        if group is not None and comm.get_world_size(group) != comm.get_world_size():
            raise NotImplementedError("a collective of some ranks only can't be put off until all of them meet")

    def all_reduce(tensor: Any, op: Any = comm.ReduceOp.SUM, group: Any = None, **kwargs: Any) -> None:
        if op != comm.ReduceOp.SUM:
            raise NotImplementedError(f"only sums can be put together in one, not {op}")
        everyone(group)
        reductions.append(tensor)

    def all_gather_into_tensor(output: Any, tensor: Any, group: Any = None, **kwargs: Any) -> None:
        everyone(group)
        gathers.append((output, tensor))

    with (
        mock.patch.object(comm, "all_reduce", all_reduce),
        mock.patch.object(comm, "all_gather_into_tensor", all_gather_into_tensor),
    ):
        yield
    if reductions:
        total = torch.cat([tensor.flatten() for tensor in reductions])
        torch.distributed.all_reduce(total)
        for tensor, part in zip(reductions, total.split([t.numel() for t in reductions]), strict=True):
            tensor.copy_(part.view_as(tensor))
    for (output, _), part in zip(gathers, all_gather([tensor for _, tensor in gathers]), strict=True):
        output.copy_(part.flatten())


def parameters(engine: Any) -> Tensors:
    """Whole parameters: what the model computes with, or in bf16 the fp32 master that it is the rounding of."""
    import torch
    from deepspeed.utils import safe_get_full_fp32_param

    known = {clean(name): parameter for name, parameter in engine.named_parameters()}
    sharded = {name: parameter for name, parameter in known.items() if hasattr(parameter, "ds_id")}
    gathered = all_gather([parameter.ds_tensor for parameter in sharded.values()])
    whole = {name: parameter.detach() for name, parameter in known.items()}
    for (name, parameter), shards in zip(sharded.items(), gathered, strict=True):
        whole[name] = shards.flatten()[: parameter.ds_numel].view(parameter.ds_shape)
    low = [name for name, parameter in known.items() if parameter.requires_grad and parameter.element_size() < 4]
    with one_collective():
        masters = {}
        for name in low:
            with suppress(KeyError):  # stage 3 doesn't know what was unfrozen behind its back
                masters[name] = safe_get_full_fp32_param(known[name])
    if low and engine.zero_optimization_stage() == 0:  # its optimizer keeps masters where `safe_get_*` doesn't look
        groups = zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups, strict=True)
        masters_of = {p: master for lows, highs in groups for p, master in zip(lows, highs, strict=True)}
        masters |= {name: masters_of.get(known[name]) for name in low}
    for name, master in masters.items():
        # The master says more, but only where the model really computes with its rounded copy.
        if master is not None and torch.equal(master.to(whole[name].device, whole[name].dtype), whole[name]):
            whole[name] = master.detach()
    return whole


def gradients(engine: Any) -> Gradients:
    from deepspeed.utils import safe_get_full_grad

    def gradient(parameter: Any) -> Any:
        # Stage 3 keeps no place for the gradient of a parameter without numbers, and raises a KeyError.
        empty = getattr(parameter, "ds_numel", 1) == 0
        return parameter.new_zeros(parameter.ds_shape) if empty else safe_get_full_grad(parameter)

    with one_collective():
        return {clean(name): gradient(each) for name, each in engine.named_parameters() if each.requires_grad}
