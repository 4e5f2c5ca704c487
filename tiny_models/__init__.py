"""Tiny, randomly initialised models, built in code from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Model = TypeVar("Model", bound=torch.nn.Module)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A random state of its own; the caller's is back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build(make: Callable[[], Model], seed: int) -> Model:
    """The model that `make` gives from a seed: the same bits in every process.

    One-dimensional weights (norms, biases) are shaken a little: libraries start
    them at exactly one or zero, where some gradients vanish and hide mistakes.
    """
    with seeded(seed):
        model = make()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim < 2:
                    parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.train()
