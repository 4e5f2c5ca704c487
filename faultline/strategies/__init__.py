"""How training is distributed: one file per family, found by looking into this folder.

For others: `naming`, `shared`.

What a family's file has, and which constants it may have, is on the page docs/add-a-strategy.md.

Files import torch inside their functions, so that this list is free of it.
"""

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

ROWS_VARIABLE = "FAULTLINE_ROWS"  # makes the global batch larger, for eight ranks
ROWS = 8 if os.environ.get(ROWS_VARIABLE) == "8" else 4
"""Rows of the global batch, which the ranks share."""

Config = dict[str, Any]
"""A DeepSpeed config, or a part of it, as its JSON has it."""

Tensors: TypeAlias = "dict[str, torch.Tensor]"
Gradients: TypeAlias = "dict[str, torch.Tensor | None]"
Evidence = Mapping[str, Any]
"""What the live objects of a rank showed, as its report has it."""


@dataclass(frozen=True)
class Wrapped:
    """A model under an engine: `backward` takes the loss and `retain_graph`, `step` applies and clears the gradients.

    `accumulate(last)` is held open around each micro-batch's forward and backward pass and says whether it is the
    step's last: the engine's own gradient accumulation. `accelerator` is there when accelerate prepared the model. An
    engine whose `backward` steps as well leaves no gradients to read. `optimizer` and `scheduler` are those that `step`
    steps, where the loop has to save them itself.
    """

    model: Any
    backward: Callable[..., None]
    step: Callable[[], None]
    accelerator: Any = None
    gradients_remain: bool = True
    accumulate: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext()
    optimizer: Any = None
    scheduler: Any = None


@dataclass(frozen=True)
class Setup:
    """Where a rank finds itself: what its cell asks for, and the device that it was given.

    `deepspeed` changes the config that a ZeRO strategy takes from its file (None takes a key out), and `keywords` are
    more arguments of torch's engines. `micro_batches` are what the engine itself accumulates for a step; it divides
    their losses by their number. `reference` says that this is the run that the others are held against: what goes
    wrong in one process too, it is built without. If it is `scheduled`, each step has a smaller learning rate (see
    `shared.schedule`). `strategy` is the cell's.
    """

    rank: int
    world_size: int
    checkpointing: str
    precision: str
    device: Any
    folder: str
    deepspeed: Config
    micro_batches: int = 1
    reference: bool = False
    scheduled: bool = False
    strategy: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)


def merged(content: Config, changes: Config) -> Config:
    """A DeepSpeed config with changes to it, in its sections too; None takes a key out."""
    new = {
        key: {**content.get(key, {}), **value} if isinstance(value, dict) else value for key, value in changes.items()
    }
    return {key: value for key, value in {**content, **new}.items() if value is not None}


@functools.cache
def families() -> dict[str, ModuleType]:
    """The families by the names of their files: the modules beside this one that have STRATEGIES."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: module for name, module in modules.items() if hasattr(module, "STRATEGIES")}


@functools.cache
def _index() -> dict[str, ModuleType]:
    ordered = sorted(families().values(), key=lambda module: (module.ORDER, module.__name__))
    return {name: module for module in ordered for name in module.STRATEGIES}


def constant(name: str, key: str, default: Any) -> Any:
    """A constant of a strategy's family; the default for a strategy that there is none of any more."""
    return getattr(_index().get(name), key, default)


@functools.cache
def distributed(name: str) -> bool:
    """Whether a strategy has a process group."""
    return bool(constant(name, "DISTRIBUTED", True))


def casts(name: str) -> bool:
    """Whether a strategy's engine casts to bf16 by itself."""
    return bool(constant(name, "CASTS", False))


def package(name: str) -> str:
    """The package whose engine a strategy is."""
    return str(constant(name, "PACKAGE", "torch"))


@functools.cache
def least_ranks(name: str) -> int:
    """How many ranks a strategy needs to be what its name says."""
    return int(constant(name, "RANKS", {}).get(name, 1))


@functools.cache
def usual_ranks(name: str) -> int:
    """The world size at which a strategy is run unless another is asked for."""
    return max(2, least_ranks(name)) if distributed(name) else 1


@functools.cache
def listed_as(key: str) -> tuple[str, ...]:
    """The strategies that their families name in a constant, USUAL or ONE_RANK, in their order."""
    return tuple(name for name in names() if name in constant(name, key, ()))


def names() -> list[str]:
    """Every strategy, from one process to the most sharded."""
    return list(_index())


def family(name: str) -> ModuleType:
    return _index()[name]


def family_name(name: str) -> str:
    """A strategy's family, as its file is called."""
    return family(name).__name__.rpartition(".")[2]


def engine(name: str) -> str:
    """What the names of a strategy and of its options begin with, such as zero2 or fsdp1."""
    return name.partition("-")[0]


def options(name: str) -> Any:
    """What its family knows of a strategy: a record of the family's own."""
    return _index()[name].STRATEGIES[name]


def wrap(built: Any, name: str, setup: Setup) -> Wrapped:
    """Put a scenario's model under the bare engine of a strategy."""
    from faultline.scenario import sgd

    return family(name).wrap(built.model, built.optimizer or sgd, options(name), setup)
