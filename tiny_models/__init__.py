"""Tiny, randomly initialised models, built in code from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Model = TypeVar("Model", bound=torch.nn.Module)
_loads: list[Callable[[Any], Any]] = []


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A random state of its own; the caller's is back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


@contextmanager
def loaded_by(load: Callable[[Any], Any]) -> Iterator[None]:
    """Give in place of each model that is built what `load` makes of it, as some strategies shard what users load."""
    _loads.append(load)
    try:
        yield
    finally:
        _loads.remove(load)


@contextmanager
def as_built() -> Iterator[None]:
    """Give models as they are built meanwhile, whatever they are `loaded_by`."""
    loads, _loads[:] = _loads[:], []
    try:
        yield
    finally:
        _loads[:] = loads


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
                    shake = torch.randn(parameter.shape, dtype=parameter.dtype, device=parameter.device) * 0.05
                    parameter.add_(as_sharded(parameter, shake))
    return loaded(model.train())


def loaded(model: Model) -> Model:
    """A model as it is to be trained: where nothing is `loaded_by`, as it is."""
    for load in _loads:
        model = load(model)
    return model


def as_sharded(parameter: Any, whole: torch.Tensor) -> Any:
    """A whole tensor, sharded as a parameter is; if its shard has another size, the parameter itself."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(parameter, DTensor):
        return whole
    sharded = distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    return sharded if sharded.to_local().shape == parameter.to_local().shape else parameter.detach()
