"""A model's parameters: which of them are tied or overlap, and what training does to each."""

import functools
from collections.abc import Iterable
from typing import Any

import torch


class ParameterChanges:
    """What the steps of a training did to each parameter, seen after every backward pass.

    Writes to parameters, sparse gradients and gradients that come no more are looked at where a model trains `alone`.
    """

    def __init__(self, model: torch.nn.Module, alone: bool) -> None:
        self.moved_by_hand: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.left_out: dict[str, None] = {}
        self.sparse: dict[str, None] = {}
        self.unfrozen: dict[str, None] = {}
        self._model = model
        self._alone = alone
        self._frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        self._before: dict[str, torch.Tensor] = {}
        self._had: set[str] = set()
        self._gradients: dict[str, str] = {}

    def begin_step(self) -> None:
        """Remember the values before a forward pass."""
        if self._alone:
            self._before = {name: parameter.detach().clone() for name, parameter in with_shapes(self._model)}

    def end_step(self) -> None:
        """Look at values and gradients after a backward pass."""
        for name, parameter in self._model.named_parameters():
            gradient = parameter.grad
            if name in self._before and not torch.equal(parameter, self._before[name]):
                (self.written if parameter.requires_grad else self.moved_by_hand).setdefault(name)
            if gradient is not None:
                self._had.add(name)
            elif self._alone and name in self._had:
                self.left_out.setdefault(name)
            if not parameter.requires_grad:
                continue
            if name in self._frozen:
                self.unfrozen.setdefault(name)
            if self._gradients.get(name) != "some":
                if self._alone and gradient is not None and gradient.layout != torch.strided:
                    self.sparse.setdefault(name)
                self._gradients[name] = "none" if gradient is None else "some" if gradient.any() else "zero"

    def got(self, kind: str) -> tuple[str, ...]:
        """The trainable parameters whose gradient was `none`, or `zero`, in every step."""
        return tuple(name for name, gradient in self._gradients.items() if gradient == kind)


def tied(model: torch.nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return [group for group in names.values() if len(group) > 1]


def overlapping(model: torch.nn.Module) -> list[str]:
    """The parameters that have an element in common with another parameter, as slices of one tensor may have."""
    every = [(name, p) for name, p in with_shapes(model) if p.layout == torch.strided and p.numel() and p.data_ptr()]
    places = sorted(((_addresses(p), name) for name, p in every), key=lambda place: int(place[0].min()))
    names: dict[str, None] = {}
    for index, (here, name) in enumerate(places):
        for peer, other in places[index + 1 :]:
            if peer.min() > here.max():
                break
            if torch.isin(here, peer).any():
                names.update({name: None, other: None})
    return [name for name, _ in every if name in names]


def with_shapes(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that have a shape: those of a lazy module have none before its forward pass."""
    return [(name, each) for name, each in model.named_parameters() if not torch.nn.parameter.is_lazy(each)]


def _addresses(tensor: torch.Tensor) -> torch.Tensor:
    """Where each element of a tensor is in memory."""
    at = torch.tensor(tensor.data_ptr())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        at = at.unsqueeze(-1) + torch.arange(size) * (stride * tensor.itemsize)
    return at


def one(model: torch.nn.Module, names: Iterable[str]) -> bool:
    """Whether names of a model's modules still stand for one tensor."""
    first, *others = (local(_parameter_of(model, name)) for name in names)
    return all(tensor is first or tensor.data_ptr() == first.data_ptr() != 0 for tensor in others)


def _parameter_of(model: torch.nn.Module, name: str) -> Any:
    """What a model holds by a parameter's name, as it is.

    An attribute would do more: within a forward pass, ZeRO-3 gathers a parameter that is asked for, and a rank that has
    just raised an error waits for peers that never come.
    """
    *path, last = name.split(".")
    module = functools.reduce(getattr, path, model)
    parameter = dict.get(module._parameters, last)
    return getattr(module, last) if parameter is None else parameter


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """A sparse tensor, such as the adjacency of a graph, with all its numbers; any other as it is."""
    return tensor.to_dense() if "sparse" in str(tensor.layout) else tensor


def local(tensor: Any) -> torch.Tensor:
    """This rank's shard of a tensor that is sharded, or the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
