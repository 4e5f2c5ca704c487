"""What seeded faults reach into: an engine's collectives, and what a rank itself holds of the weights."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from faultline.strategies import Setup


def local_weights(model: Any) -> list[torch.Tensor]:
    """What this rank itself holds of the weights: its shard, or the whole replica."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = FullyShardedDataParallel.fsdp_modules(model)
    if units:
        return [unit._handle.flat_param.data for unit in units if unit._handle]
    tensors = [getattr(parameter, "ds_tensor", parameter).detach() for parameter in model.parameters()]
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def unreduced_in_ddp(model: Any, setup: Setup, at_fault: Callable[[], bool]) -> None:
    """Have DDP leave a rank its local gradients while it is at fault; its peers get the mean as always."""

    # torch refuses a hook with other annotations than these.
    def relevant(state: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        local = bucket.buffer().clone()
        summed = torch.distributed.all_reduce(bucket.buffer().div_(setup.world_size), async_op=True).get_future()
        return summed.then(lambda future: local if at_fault() else future.value()[0])

    model.register_comm_hook(None, relevant)


@contextlib.contextmanager
def own_results(setup: Setup) -> Iterator[None]:
    """Collectives that sum run as always, and leave behind what this rank put in."""
    c10d = torch.distributed.distributed_c10d

    def in_place(original: Any) -> Any:
        def reduce(tensor: Any, *args: Any, **kwargs: Any) -> None:
            local = tensor.clone()
            finish(original(tensor, *args, **kwargs))
            tensor.copy_(local)

        return reduce

    def scattered(original: Any) -> Any:
        def reduce_scatter(output: Any, input: Any, *args: Any, **kwargs: Any) -> None:
            group = kwargs.get("group")  # the ranks of a node, where each has its shards
            local = input.clone().view(-1, *output.shape)[torch.distributed.get_rank(group)]
            finish(original(output, input, *args, **kwargs))
            output.copy_(local)

        return reduce_scatter

    def finish(work: Any) -> None:
        if work is not None:
            work.wait()

    wrappers = dict.fromkeys(("all_reduce", "reduce"), in_place)
    wrappers |= dict.fromkeys(("reduce_scatter_single", "reduce_scatter_tensor"), scattered)
    with contextlib.ExitStack() as stack:
        for name, wrap in wrappers.items():
            if hasattr(c10d, name):  # torch before 2.13 has no reduce_scatter_single
                for module in (torch.distributed, c10d):
                    stack.enter_context(mock.patch.object(module, name, wrap(getattr(c10d, name))))
        yield


@contextlib.contextmanager
def without_peer_nodes(setup: Setup) -> Iterator[None]:
    """An all-reduce of some ranks only does nothing: with hybrid sharding, that of the copies."""
    c10d = torch.distributed.distributed_c10d
    original = c10d.all_reduce

    def all_reduce(tensor: Any, *args: Any, group: Any = None, **kwargs: Any) -> Any:
        if torch.distributed.get_world_size(group) < setup.world_size:
            return None
        return original(tensor, *args, group=group, **kwargs)

    with contextlib.ExitStack() as stack:
        for module in (torch.distributed, c10d):
            stack.enter_context(mock.patch.object(module, "all_reduce", all_reduce))
        yield
