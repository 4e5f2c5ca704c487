"""What the modules of a model do while it trains: their outputs, how often they run, and on what."""

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from faultline.ranks.checkpointing import CutOff
from faultline.ranks.facts import Facts, not_in_all, not_in_one_order
from faultline.ranks.parameters import ParameterChanges, dense, one, overlapping, tied, with_shapes
from faultline.ranks.weight_reads import Reads
from faultline.strategies.shared import blocks


class Observer:
    """Sees every call of a model's modules from a step's forward pass, recomputation aside.

    `share` is the rank whose rows are going through the model: in a reference they go one after the other. `outputs`
    has the first tensor of each call in the step, named ``share module#call`` in the order of the calls. `logged` are
    the norms of gradients that an engine gave. `known` are facts that no step shows.
    `in_loss` is on while a loss is computed. Where weights are read, what moves
    by hand and whether a backward pass makes a graph is seen where the model trains `alone`.
    """

    def __init__(self, model: torch.nn.Module, alone: bool = False) -> None:
        self.known = Facts(model=type(model).__name__)
        self.share = 0
        self.logged: list[float] = []
        self.collectives: dict[str, None] = {}
        self.own_backward = self.in_loss = self._input_gradient = False
        self.generators: list[Any] = []  # of random numbers, that the model or its loss has by itself
        self.drew = False
        self.draws: list[str] = []
        self.by_rows = True  # whether outputs are of a rank's rows, and can be compared
        self.outputs: dict[str, torch.Tensor] = {}
        self._model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._layers = checkpointed(model)
        self._with_state = {each for each in model.modules() if [*each.parameters(), *each.buffers()]}
        self._units = innermost(model, blocks(model)) if alone else {}
        self._tied = tied(model)
        self._hooked = tuple(name for name, each in model.named_parameters() if each._backward_hooks) if alone else ()
        self._on = False
        self._inside: list[str] = []
        self._given: list[dict[int, int]] = []  # how often inputs were written before each of `_inside`
        self._calls: Counter[tuple[int, str]] = Counter()
        self._used: dict[int, dict[str, None]] = {}
        self._cut_off = CutOff(self._names)
        self._reads = Reads(model, self._inside) if alone else None
        self._parameters = ParameterChanges(model, alone)
        self._double_backward = False
        self._most_calls: dict[str, int] = {}
        self._unequal: set[str] = set()
        self._unlike_order: set[str] = set()
        # Names in the order in which they were seen.
        self._frozen_input: dict[str, None] = {}
        self._without_root: dict[str, None] = {}
        self._without_unit: dict[str, None] = {}
        self._order: dict[str, None] = {}
        self._entered: dict[str, None] = {}
        register_module_forward_pre_hook(self._before_forward)
        register_module_forward_hook(self._on_forward, with_kwargs=True)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Held open from a step's forward pass until its backward pass has ended."""
        self.outputs, self._on = {}, True
        self._calls.clear()
        self._inside.clear()
        self._given.clear()
        self._used.clear()
        self._parameters.begin_step()
        try:
            with self._cut_off.watching(), self._reads or nullcontext():
                yield
        finally:
            self._on = False
        self._unequal |= not_in_all([*map(set, self._used.values())])
        self._unlike_order |= not_in_one_order([*self._used.values()])
        self._parameters.end_step()

    def _name_of(self, module: torch.nn.Module) -> str | None:
        """The name of a module whose forward pass is looked at; None for others, and while it is recomputed."""
        return self._names.get(module) if self._on and torch._C._current_graph_task_id() == -1 else None

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        name = self._name_of(module)
        if name is not None:
            if name and "" not in self._inside and module in self._with_state:  # a plain loss asks no wrapper
                self._without_root.setdefault(name)
            around = [self._names[unit] for unit in self._units.get(module, ())]
            if not {*around} & {*self._inside}:
                self._without_unit.update(dict.fromkeys(around))
            self._inside.append(name)
            self._given.append({id(tensor): tensor._version for tensor in tensors(args)} if self._reads else {})
        if self._on and (name == "" or module not in self._names):  # the model, or what may be its wrapper
            self._entered.update(dict.fromkeys(base.__name__ for base in type(module).__mro__))

    def _on_forward(self, module: torch.nn.Module, args: Any, kwargs: Mapping[str, object], output: Any) -> None:
        name = self._name_of(module)
        if name is None:
            return
        while self._inside and self._inside.pop() != name:
            pass  # those that raised, and whose error the model took care of
        self._see_written(self._reads, name, args, output)
        self._calls[self.share, name] += 1
        call = self._calls[self.share, name]
        self._order.setdefault(name)
        first = next(tensors(output), None)
        if first is not None and self.by_rows:
            self.outputs[f"{self.share} {name}#{call}"] = dense(first.detach()).clone()
            if self._reads and first.grad_fn:
                first.grad_fn.register_prehook(self._on_backward)
        if any(True for _ in torch.nn.Module.parameters(module, recurse=False)):  # a class may have its own
            self._used.setdefault(self.share, {}).setdefault(name)
            self._most_calls[name] = max(call, self._most_calls.get(name, 0))
        if module in self._layers and any(p.requires_grad for p in module.parameters()):
            given = [tensor for tensor in tensors((args, kwargs)) if tensor.is_floating_point()]
            if given and torch.is_grad_enabled() and not any(tensor.requires_grad for tensor in given):
                self._frozen_input.setdefault(name)

    def _see_written(self, reads: Reads | None, name: str, args: Any, output: Any) -> None:
        """An input that a module wrote, and doesn't give back: if its caller reads it, it reads another one under an
        engine that gave the module a detached one."""
        before, self._given[len(self._inside) :] = self._given[len(self._inside)], []
        given_back = {id(tensor) for tensor in tensors(output)}
        for tensor in tensors(args) if reads else ():
            written = tensor.requires_grad and tensor._version > before.get(id(tensor), tensor._version)
            if reads and written and id(tensor) not in given_back:
                reads.wrote[id(tensor)] = tensor, name

    def _on_backward(self, gradients: Any) -> None:
        self._double_backward = self._double_backward or torch.is_grad_enabled()  # it is in `create_graph` alone
        self._input_gradient = self._input_gradient or self.in_loss

    def facts(self) -> Facts:
        """What was seen, beside what is `known`."""
        model, changes = self._model, self._parameters
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        seen = replace(
            self.known,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            trainable=sum(parameter.numel() for parameter in trainable),
            no_gradient=changes.got("none"),
            zero_gradient=changes.got("zero"),
            several_calls=tuple(name for name, calls in self._most_calls.items() if calls > 1),
            frozen_input=tuple(self._frozen_input | self._cut_off.modules),
            unfrozen=tuple(changes.unfrozen),
            double_backward=self._double_backward,
            own_backward=self.own_backward,
            input_gradient=self._input_gradient and not (self._double_backward or self.own_backward),
            draws=tuple(self.draws or ["a place that isn't known"] * self.drew),
            without_root=tuple(self._without_root),
            without_unit=tuple(self._without_unit),
            sparse=tuple(changes.sparse),
            hooked=self._hooked,
            collectives=tuple(self.collectives),
            units=tuple(sorted(each.__name__ for each in blocks(model))),
            moved_by_hand=tuple(changes.moved_by_hand),
            written=tuple(changes.written),
            left_out=tuple(changes.left_out),
            entered=tuple(self._entered),
            unequal=tuple(sorted(self._unequal)),
            unlike_order=tuple(sorted(self._unlike_order)),
            tied=tuple(map(tuple, self._tied)),
            apart=tuple(tuple(names) for names in self._tied if not one(model, names)),
            order=tuple(self._order),
            inside=self._inside[-1] if self._inside else None,
        )
        if not self._reads:
            return seen
        return replace(
            seen,
            written_inputs=tuple(self._reads.again),
            overlapping=tuple(overlapping(model)),
            complex_valued=tuple(name for name, parameter in with_shapes(model) if parameter.is_complex()),
            read_outside=tuple(self._reads.outside),
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
