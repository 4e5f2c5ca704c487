"""Faults seeded into strategies of several nodes, and another way to make the same nodes; ranks load them by name."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch.distributed import device_mesh

from faultline.ranks.run import Injection
from faultline.scenario import Scenario
from faultline.strategies import Config, Setup, Wrapped, merged
from lab.programs.planted import LAST


@contextlib.contextmanager
def _nothing_between_nodes(setup: Setup) -> Iterator[None]:
    """An all-reduce of some ranks only does nothing: with hybrid sharding, that of the copies."""
    c10d = torch.distributed.distributed_c10d
    original = c10d.all_reduce

    def all_reduce(tensor: Any, *args: Any, group: Any = None, **kwargs: Any) -> Any:
        if torch.distributed.get_world_size(group) < setup.world_size:
            return None
        return original(tensor, *args, group=group, **kwargs)

    with (
        mock.patch.object(torch.distributed, "all_reduce", all_reduce),
        mock.patch.object(c10d, "all_reduce", all_reduce),
    ):
        yield


def _apart(wrapped: Wrapped, setup: Setup) -> Wrapped:
    """Each node trains by itself in the last step."""
    steps = itertools.count()

    def backward(loss: Any) -> None:
        with _nothing_between_nodes(setup) if next(steps) == LAST else contextlib.nullcontext():
            wrapped.backward(loss)

    return replace(wrapped, backward=backward)


UNREDUCED_BETWEEN_NODES = Injection(wrapped=_apart)


def _mesh_of(ranks: Sequence[Sequence[int]]) -> None:
    """Strategies of this process get a mesh [node, rank in the node] of these ranks."""

    def made(device_type: str, shape: tuple[int, ...], *, mesh_dim_names: Any = None) -> Any:
        return device_mesh.DeviceMesh(device_type, torch.tensor(ranks), mesh_dim_names=("nodes", "ranks"))

    device_mesh.init_device_mesh = made


def nodes(ranks: Sequence[Sequence[int]], **zero: int) -> Injection:
    """These ranks as nodes, where a strategy makes a mesh of them; and these settings of ZeRO."""
    changes: Config = {"zero_optimization": zero}

    def scenario(built: Scenario, setup: Setup) -> Scenario:
        return replace(built, deepspeed=merged(built.deepspeed, changes))

    return Injection(model=lambda model: _mesh_of(ranks), scenario=scenario)


NODES_OF_ONE = nodes([[0], [1], [2], [3]], zero_hpz_partition_size=1)
ONE_NODE = nodes([[0, 1, 2, 3]], zero_hpz_partition_size=4)
ACROSS_NODES = nodes([[0, 2], [1, 3]])
# DeepSpeed's own defaults leave a small model whole between forward and backward pass.
IDLE_PARTITION = nodes(
    [[0, 1], [2, 3]], stage3_prefetch_bucket_size=50_000_000, stage3_max_reuse_distance=1_000_000_000
)

# A change that is none: nodes by another constructor, and by other names.
SAME_NODES = nodes([[0, 1], [2, 3]])
