"""Faults seeded into what a training saves, and into what it resumes from; ranks load them by name."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from faultline.ranks.run import Injection
from faultline.strategies import Setup, Wrapped
from lab.programs.fault import FAULTY


def on_saved(change: Callable[[dict[str, torch.Tensor]], object]) -> Injection:
    """Let ``change(tensors)`` alter what is in a checkpoint's `model.safetensors`."""

    def save(write: Callable[[], None], folder: Path, setup: Setup) -> None:
        write()
        if setup.rank == 0:
            tensors = safetensors.torch.load_file(folder / "model.safetensors")
            change(tensors)
            safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return Injection(save=save)


SAVED = "model.layers.0.mlp.up_proj.weight"
MISSING_TENSOR = on_saved(lambda tensors: tensors.pop(SAVED))
EMPTY_TENSOR = on_saved(lambda tensors: tensors.update({SAVED: torch.empty(0)}))
STALE_TENSOR = on_saved(lambda tensors: tensors[SAVED].mul_(1 + 1e-5))


def _one_rank_saves(write: Callable[[], None], folder: Path, setup: Setup) -> None:
    """The faulty rank goes on with training while its peers save."""
    if setup.rank != FAULTY:
        write()


ONE_RANK_SAVES = Injection(save=_one_rank_saves)


def on_resuming(spoil: Callable[[Any, Any, Setup], object]) -> Injection:
    """Spoil what a rank has just loaded, with ``spoil(optimizer, scheduler, setup)``."""

    def resumed(wrapped: Wrapped, setup: Setup) -> None:
        engine = wrapped.model  # which has them where the loop doesn't
        spoil(wrapped.optimizer or engine.optimizer, wrapped.scheduler or getattr(engine, "lr_scheduler", None), setup)

    return Injection(resumed=resumed)


def _no_momentum(optimizer: Any, scheduler: Any, setup: Setup) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


def _first_rate(optimizer: Any, scheduler: Any, setup: Setup) -> None:
    scheduler.last_epoch = 0
    for group, rate in zip(optimizer.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = rate


def _loaded_twice(optimizer: Any, scheduler: Any, setup: Setup) -> None:
    """What was loaded, in new tensors; and a random number whose drawing is undone."""
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].clone()
    scheduler.load_state_dict(scheduler.state_dict())
    before = torch.get_rng_state()
    torch.rand(1)
    torch.set_rng_state(before)


LOADED_TWICE = on_resuming(_loaded_twice)
MOMENTUM_LOST = on_resuming(_no_momentum)
SCHEDULE_RESTARTED = on_resuming(_first_rate)
RANDOM_STATE_OF_ONE_RANK = on_resuming(lambda optimizer, scheduler, setup: torch.manual_seed(1000))
PYTHON_DRAWS_ANEW = on_resuming(lambda optimizer, scheduler, setup: random.seed(1000))
NUMPY_DRAWS_ANEW = on_resuming(lambda optimizer, scheduler, setup: np.random.seed(1000))
