"""What the modules of a model do while it trains: their outputs, how often they run, and on what."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from faultline.ranks.checkpointing import CutOff
from faultline.ranks.facts import Facts, not_in_all
from faultline.ranks.weight_reads import Reads
from faultline.strategies.shared import blocks


class Observer:
    """Sees every call of a model's modules from a step's forward pass, recomputation aside.

    `share` is the rank whose rows are going through the model: in a reference they go one after the other. `outputs`
    has the first tensor of each call in the step, named ``share module#call`` in the order of the calls. `logged` are
    the norms of gradients that an engine gave. Where weights are read, what moves by hand and whether a
    backward pass makes a graph is seen where the model trains `alone`.
    """

    def __init__(self, model: torch.nn.Module, alone: bool = False) -> None:
        self.share = 0
        self.not_fed: list[str] = []
        self.cast: list[str] = []
        self.of_loss: list[str] = []
        self.unregistered: list[str] = []
        self.logged: list[float] = []
        self.collectives: dict[str, None] = {}
        self.own_backward = False
        self.generators: list[Any] = []  # of random numbers, that the model or its loss has by itself
        self.drew = False
        self.draws: list[str] = []
        self.by_rows = True  # whether outputs are of a rank's rows, and can be compared
        self.outputs: dict[str, torch.Tensor] = {}
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._layers = checkpointed(model)
        self._tied = tied(model)
        self._on = False
        self._calls: Counter[tuple[int, str]] = Counter()
        self._several: dict[str, int] = {}
        self._frozen: dict[str, None] = {}
        self._cut_off = CutOff(self._names)
        self._inside: list[str] = []
        self._reads = Reads(model, self._inside) if alone else None
        self._double_backward = False
        self._used: dict[int, set[str]] = {}
        self._unequal: set[str] = set()
        self._before: dict[str, torch.Tensor] = {}
        self._by_hand: dict[str, None] = {}
        self._written: dict[str, None] = {}
        self._had: set[str] = set()
        self._left_out: dict[str, None] = {}
        self._without_root: dict[str, None] = {}
        self._units = innermost(model, blocks(model)) if alone else {}
        self._without_unit: dict[str, None] = {}
        self._order: dict[str, None] = {}
        self._gradients: dict[str, str] = {}
        self._sparse: dict[str, None] = {}
        self._hooked = [name for name, each in model.named_parameters() if each._backward_hooks] if alone else []
        self._entered: dict[str, None] = {}
        self._at_first = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        self._unfrozen: dict[str, None] = {}
        register_module_forward_pre_hook(self._before_forward)
        register_module_forward_hook(self._on_forward, with_kwargs=True)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Held open from a step's forward pass until its backward pass has ended."""
        self.outputs, self._on = {}, True
        self._calls.clear()
        self._inside.clear()
        self._used.clear()
        if self._reads:
            self._before = {name: parameter.detach().clone() for name, parameter in with_shapes(self._model)}
        try:
            with self._cut_off.watching(), self._reads or nullcontext():
                yield
        finally:
            self._on = False
        every = [*self._used.values()]
        self._unequal |= not_in_all(every)
        for name, parameter in self._model.named_parameters():
            if name in self._before and not torch.equal(parameter, self._before[name]):
                (self._written if parameter.requires_grad else self._by_hand).setdefault(name)
            if parameter.grad is not None:
                self._had.add(name)
            elif self._reads and name in self._had:
                self._left_out.setdefault(name)
            if parameter.requires_grad and name in self._at_first:
                self._unfrozen.setdefault(name)
            if parameter.requires_grad and self._gradients.get(name) != "some":
                gradient = parameter.grad
                if self._reads and gradient is not None and gradient.layout != torch.strided:
                    self._sparse.setdefault(name)
                self._gradients[name] = "none" if gradient is None else "some" if gradient.any() else "zero"

    def _name_of(self, module: torch.nn.Module) -> str | None:
        """The name of a module whose forward pass is looked at; None for others, and while it is recomputed."""
        return self._names.get(module) if self._on and torch._C._current_graph_task_id() == -1 else None

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        name = self._name_of(module)
        if name is not None:
            if name and "" not in self._inside:
                self._without_root.setdefault(name)
            around = [self._names[unit] for unit in self._units.get(module, ())]
            if not {*around} & {*self._inside}:
                self._without_unit.update(dict.fromkeys(around))
            self._inside.append(name)
        if self._on and (name == "" or module not in self._names):  # the model, or what may be its wrapper
            self._entered.update(dict.fromkeys(base.__name__ for base in type(module).__mro__))

    def _on_forward(self, module: torch.nn.Module, args: Any, kwargs: Mapping[str, object], output: Any) -> None:
        name = self._name_of(module)
        if name is None:
            return
        while self._inside and self._inside.pop() != name:
            pass  # those that raised, and whose error the model took care of
        self._calls[self.share, name] += 1
        call = self._calls[self.share, name]
        self._order.setdefault(name)
        first = next(tensors(output), None)
        if first is not None and self.by_rows:
            self.outputs[f"{self.share} {name}#{call}"] = dense(first.detach()).clone()
            if self._reads and first.grad_fn:
                first.grad_fn.register_prehook(self._on_backward)
        if any(True for _ in torch.nn.Module.parameters(module, recurse=False)):  # a class may have its own
            self._used.setdefault(self.share, set()).add(name)
            self._several[name] = max(call, self._several.get(name, 0))
        if module in self._layers and any(p.requires_grad for p in module.parameters()):
            given = [tensor for tensor in tensors((args, kwargs)) if tensor.is_floating_point()]
            if given and torch.is_grad_enabled() and not any(tensor.requires_grad for tensor in given):
                self._frozen.setdefault(name)

    def _on_backward(self, gradients: Any) -> None:
        self._double_backward = self._double_backward or torch.is_grad_enabled()  # it is in `create_graph` alone

    def facts(self) -> Facts:
        """What was seen."""
        trainable = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        return Facts(
            model=type(self._model).__name__,
            parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            trainable=sum(parameter.numel() for parameter in trainable),
            no_gradient=tuple(name for name, gradient in self._gradients.items() if gradient == "none"),
            zero_gradient=tuple(name for name, gradient in self._gradients.items() if gradient == "zero"),
            several_calls=tuple(name for name, calls in self._several.items() if calls > 1),
            frozen_input=tuple(self._frozen | self._cut_off.modules),
            unfrozen=tuple(self._unfrozen),
            double_backward=self._double_backward,
            own_backward=self.own_backward,
            draws=tuple(self.draws or ["a place that isn't known"] * self.drew),
            without_root=tuple(self._without_root),
            without_unit=tuple(self._without_unit),
            overlapping=tuple(overlapping(self._model)) if self._reads else (),
            complex_valued=tuple(name for name, p in with_shapes(self._model) if p.is_complex()) if self._reads else (),
            sparse=tuple(self._sparse),
            hooked=tuple(self._hooked),
            of_loss=tuple(self.of_loss),
            unregistered=tuple(self.unregistered),
            collectives=tuple(self.collectives),
            units=tuple(sorted(each.__name__ for each in blocks(self._model))),
            moved_by_hand=tuple(self._by_hand),
            written=tuple(self._written),
            left_out=tuple(self._left_out),
            read_outside=tuple(self._reads.outside) if self._reads else (),
            entered=tuple(self._entered),
            unequal=tuple(sorted(self._unequal)),
            tied=tuple(map(tuple, self._tied)),
            apart=tuple(tuple(names) for names in self._tied if not one(self._model, names)),
            order=tuple(self._order),
            inside=self._inside[-1] if self._inside else None,
            not_fed=tuple(self.not_fed),
            cast=tuple(self.cast),
        )


def innermost(model: torch.nn.Module, units: Collection[type]) -> dict[torch.nn.Module, list[torch.nn.Module]]:
    """The innermost unit around each module with weights that is none itself, in each place that it has."""
    places = dict(model.named_modules(remove_duplicate=False))
    around_each: dict[torch.nn.Module, list[torch.nn.Module]] = {}
    for name, module in places.items():
        around = [places[name.rsplit(".", number + 1)[0]] for number in range(name.count("."))]
        inside = [each for each in around if type(each) in units]
        if inside and type(module) not in units and any(True for _ in torch.nn.Module.parameters(module)):
            around_each.setdefault(module, []).append(inside[0])
    return around_each


def checkpointed(model: torch.nn.Module) -> set[torch.nn.Module]:
    """The layers that gradient checkpointing is meant for: those that say so, else a model's blocks, if it has any."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    if not hasattr(model, "gradient_checkpointing_enable"):
        return set()
    layers = {module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)}
    known = blocks(model)
    return layers or {module for module in model.modules() if type(module) in known}


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested containers, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


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
