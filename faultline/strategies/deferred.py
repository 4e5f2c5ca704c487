"""Collectives of DeepSpeed put off, so that many small ones become one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from faultline.strategies.shared import all_gather


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
