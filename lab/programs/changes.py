"""What seeded faults change, by their kind: a loss, rows, weights, gradients, a checkpoint, what was loaded, a mesh."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributed
from torch.distributed import device_mesh

from faultline.cells.cell import HALF, STEPS
from faultline.scenario import Scenario
from faultline.strategies import Setup
from lab.programs.engines import own_results, without_peer_nodes
from lab.programs.fault import FAULTY, Fault

Tensors = list[torch.Tensor]
SAVED = "model.layers.0.mlp.up_proj.weight"


@dataclass
class Clock:
    """The fault of a rank, the step that it is in, from 1 and through both halves of a life, and the losses in it."""

    fault: Fault
    step: int = 1
    losses: int = 0

    @property
    def strikes(self) -> bool:
        """Whether it is the step at fault, on the rank at fault."""
        return (distributed.get_rank(), self.step) == (FAULTY, self.fault.step)


LOSSES: Mapping[str, Callable[[Clock, Setup], float]] = {
    "loss": lambda clock, setup: clock.fault.times if clock.step >= clock.fault.step else 1.0,
    "share": lambda clock, setup: clock.fault.times if clock.strikes else 1.0,
    "micro-batch": lambda clock, setup: (
        clock.fault.times if (clock.step, clock.losses) == (clock.fault.step, 1) else 1.0
    ),
    "world size": lambda clock, setup: setup.data_world,
    "alternating": lambda clock, setup: 1 + clock.fault.times * (-1) ** (setup.rank + clock.step),
}
"""What a loss is multiplied by."""


def _rows(built: Scenario, setup: Setup, number: int) -> Any:
    return built.batch(number, setup.data_rank, setup.data_world)


def _interleaved(fault: Fault, built: Scenario, setup: Setup, number: int) -> Any:
    rows = slice(setup.data_rank, None, setup.data_world)
    whole = built.batch(number, 0, 1)
    return {key: value[rows] if torch.is_tensor(value) else value * setup.data_world for key, value in whole.items()}


def _tokens(batch: Mapping[str, Any]) -> int:
    """How many tokens of a rank's rows are trained on."""
    return int((batch["labels"][:, 1:] != -100).sum())


def _own_mean(fault: Fault, built: Scenario, setup: Setup, number: int) -> Any:
    batch = _rows(built, setup, number)
    return {**batch, "scale": 1 / _tokens(batch)}


def _own_count(fault: Fault, built: Scenario, setup: Setup, number: int) -> Any:
    batch = _rows(built, setup, number)
    return {**batch, "num_items": _tokens(batch) * setup.data_world * built.micro_batches}


ROWS: Mapping[str, Callable[[Fault, Scenario, Setup, int], Any]] = {
    "rows": lambda fault, built, setup, number: _rows(
        built, setup, number + (5 if (setup.data_rank, number + 1) == (FAULTY, fault.step) else 0)
    ),
    "other order": lambda fault, built, setup, number: _rows(
        built, setup, STEPS - 1 - number if setup.rank == FAULTY else number
    ),
    "same rows": lambda fault, built, setup, number: built.batch(number, 0, setup.data_world),
    "first rows": lambda fault, built, setup, number: _rows(built, setup, number % HALF),
    "own mean": _own_mean,
    "own count": _own_count,
    "interleaved": _interleaved,
}
"""The rows of a rank's micro-batch."""
APART: Mapping[str, Callable[[Setup], AbstractContextManager[None]]] = {
    "unreduced": own_results,
    "one unreduced": own_results,
    "apart": without_peer_nodes,
}
"""What a backward pass runs in, in the step at fault."""


def put_back(now: Tensors, before: Tensors) -> None:
    for tensor, old in zip(now, before, strict=True):
        tensor.copy_(old)


def _drift(now: Tensors, before: Tensors) -> None:
    generator = torch.Generator().manual_seed(3)
    for tensor in now:
        tensor.mul_(1 + 1e-5 * torch.randn(tensor.shape, generator=generator))


def _turn_one_bit(now: Tensors, before: Tensors) -> None:
    first = now[0].view(-1)[:1]
    first.copy_(torch.nextafter(first, torch.full_like(first, math.inf)))


def _spoil(now: Tensors, before: Tensors) -> None:
    max(now, key=torch.numel).view(-1)[0] = math.nan


WEIGHTS: Mapping[str, Callable[[Tensors, Tensors], None]] = {
    "stale": put_back,
    "drift": _drift,
    "bit": _turn_one_bit,
    "nan weight": _spoil,
}
"""What becomes of a rank's share of the weights after a step, in place; beside it is what it was before."""
CHECKPOINTS: Mapping[str, Callable[[dict[str, torch.Tensor]], object]] = {
    "missing": lambda tensors: tensors.pop(SAVED),
    "empty": lambda tensors: tensors.update({SAVED: torch.empty(0)}),
    "stale tensor": lambda tensors: tensors[SAVED].mul_(1 + 1e-5),
}
"""What becomes of the tensors of a checkpoint."""


def _first_rate(optimizer: Any, scheduler: Any) -> None:
    scheduler.last_epoch = 0
    for group, rate in zip(optimizer.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = rate


def _loaded_twice(optimizer: Any, scheduler: Any) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].clone()
    scheduler.load_state_dict(scheduler.state_dict())
    before = torch.get_rng_state()
    torch.rand(1)
    torch.set_rng_state(before)


LOADED: Mapping[str, Callable[[Any, Any], object]] = {
    "schedule": _first_rate,
    "loaded twice": _loaded_twice,
    "torch draws anew": lambda optimizer, scheduler: torch.manual_seed(1000),
    "python draws anew": lambda optimizer, scheduler: random.seed(1000),
    "numpy draws anew": lambda optimizer, scheduler: np.random.seed(1000),
}
"""What becomes of what a rank has just loaded."""
PAIRS = [[0, 1], [2, 3]]
MESHES: Mapping[str, tuple[Sequence[Sequence[int]], Mapping[str, int]]] = {
    "nodes of one": ([[0], [1], [2], [3]], {"zero_hpz_partition_size": 1}),
    "one node": ([[0, 1, 2, 3]], {"zero_hpz_partition_size": 4}),
    "across nodes": ([[0, 2], [1, 3]], {}),
    # DeepSpeed's own defaults leave a small model whole between forward and backward pass.
    "idle partition": (
        PAIRS,
        {"stage3_prefetch_bucket_size": 50_000_000, "stage3_max_reuse_distance": 1_000_000_000},
    ),
    # A change that is none: nodes by another constructor, and by other names.
    "same nodes": (PAIRS, {}),
}
"""The ranks of each node, where a strategy makes a mesh of them, and settings of ZeRO."""


def make_meshes_of(ranks: Sequence[Sequence[int]]) -> None:
    """Have strategies of this process get a mesh [node, rank in the node] of these ranks."""

    def made(device_type: str, shape: tuple[int, ...], *, mesh_dim_names: Any = None) -> Any:
        return device_mesh.DeviceMesh(device_type, torch.tensor(ranks), mesh_dim_names=("nodes", "ranks"))

    device_mesh.init_device_mesh = made
