"""How training is distributed: one file per family, found by looking into this folder.

A strategy file has a dictionary STRATEGIES (name to options) and the functions

    wrap(model, optimizer, options, setup) -> Wrapped   under the bare engine; `optimizer(model)` makes the optimizer
    arguments(options, setup) -> dict               for TrainingArguments
    accelerate(options, setup) -> dict              for accelerate.Accelerator
    parameters(wrapped), gradients(wrapped)         whole tensors by name, on every rank
    evidence(wrapped) -> dict                       what the live objects show
    prepared(options) -> dict                       what accelerate's state shows before it has wrapped a model
    doubts(options, evidence) -> list[str]          what the evidence fails to prove

Files import torch inside their functions, so that this list is free of it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Wrapped:
    """A model under an engine: `backward` takes the loss, `step` applies and clears the gradients.

    `accumulate(last)` is held open around each micro-batch's forward and backward pass and says whether it is the
    step's last: the engine's own gradient accumulation. `accelerator` is there when accelerate prepared the model. An
    engine whose `backward` steps as well leaves no gradients to read.
    """

    model: Any
    backward: Callable[[Any], None]
    step: Callable[[], None]
    accelerator: Any = None
    gradients_remain: bool = True
    accumulate: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext()


@dataclass(frozen=True)
class Setup:
    """Where a rank finds itself: what its cell asks for, and the device that it was given.

    `deepspeed` changes the config that a ZeRO strategy takes from its file (None takes a key out). `micro_batches`
    are what the engine itself accumulates for a step; it divides their losses by their number. `reference` says that
    this is the run that the others are held against: what goes wrong in one process too, it is built without.
    """

    rank: int
    world_size: int
    checkpointing: str
    precision: str
    device: Any
    folder: str
    deepspeed: dict[str, Any]
    micro_batches: int = 1
    reference: bool = False


@functools.cache
def families() -> dict[str, ModuleType]:
    """The strategy files by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names if not name.startswith("_")}


@functools.cache
def _index() -> dict[str, ModuleType]:
    found = sorted(families().values(), key=lambda module: (module.ORDER, module.__name__))
    return {name: module for module in found for name in module.STRATEGIES}


def names() -> list[str]:
    """Every strategy, from one process to the most sharded."""
    return list(_index())


def family(name: str) -> ModuleType:
    return _index()[name]


def options(name: str) -> dict[str, Any]:
    return dict(_index()[name].STRATEGIES[name])


def wrap(built: Any, name: str, setup: Setup) -> Wrapped:
    """Put a scenario's model under the bare engine of a strategy."""
    from faultline.scenario import sgd

    return family(name).wrap(built.model, built.optimizer or sgd, options(name), setup)
