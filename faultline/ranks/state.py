"""What a model keeps beside what it trains: its buffers, and whatever its forward pass changes of itself."""

import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch.nn.modules.batchnorm import SyncBatchNorm, _BatchNorm

from faultline.ranks.parameters import dense, local, with_shapes
from faultline.scenario import Scenario
from faultline.strategies import Tensors
from faultline.strategies.shared import clean

OF_TORCH = frozenset(vars(torch.nn.Module()))
RANKS = 2  # by whose rows a scenario's buffers are distinguished: the usual world size
Values = dict[str, Any]  # what a module or an object holds, by name
PLAIN = (bool, int, float, complex, str, bytes, type(None))
STATE = (*PLAIN, torch.Tensor, list, tuple, dict, set, deque)


def buffers(model: torch.nn.Module, saved: bool = True) -> dict[str, torch.Tensor]:
    """The buffers that a checkpoint has, or those that it hasn't, each once, by the names that the bare model has."""
    by_place: dict[int, tuple[str, torch.Tensor]] = {}
    for prefix, module in model.named_modules():
        for name, tensor in module._buffers.items():
            if tensor is not None and (name not in module._non_persistent_buffers_set) is saved:
                its_name = clean(f"{prefix}.{name}" if prefix else name)
                by_place.setdefault(id(tensor), (its_name, dense(local(tensor.detach()))))
    return dict(by_place.values())


def unsaved(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers that no checkpoint has, and tensors that are attributes of modules, by name."""
    attributes = values_by_name(model, _state_of).items()
    tensors = {name: local(each.detach()) for name, each in attributes if isinstance(each, torch.Tensor)}
    return tensors | buffers(model, saved=False)


def batch_statistics(model: torch.nn.Module) -> list[str]:
    """The modules that normalise by the statistics of the rows that they are given, which are a rank's."""
    return [
        clean(name)
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm) and module.training
    ]


class Entry:
    """What the buffers of a model held as its first forward pass since `expect` began, once they were broadcast.

    `replaced` says whether what one forward pass left in them was something else as the next one began: an engine that
    broadcasts rank 0's does so before each, on every other `rank`.
    """

    def __init__(self, model: torch.nn.Module, read: Callable[[dict[str, torch.Tensor]], Tensors], rank: int) -> None:
        self.held: Tensors | None = None
        self.replaced = False
        self._model, self._read, self._expected = model, read, False
        self._left: Tensors = {}
        if buffers(model):
            model.register_forward_pre_hook(self._enter)
            if rank:
                model.register_forward_hook(self._leave)

    def expect(self) -> None:
        self.held, self.replaced, self._expected, self._left = None, False, True, {}

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if self._expected:
            self.held, self._expected = self._read(buffers(self._model)), False
        elif self._left:
            now = self._read(buffers(self._model))
            self.replaced |= any(not torch.equal(now[name], left) for name, left in self._left.items() if name in now)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self._left = self._read(buffers(self._model))


class Shares:
    """What the ranks' shares of a step's rows leave behind in a model's buffers, in one process.

    Each share begins with the state that rank 0's left in the step before. Where the shares are the reference's own
    micro-batches, or so many of them each, they move that state once, not once each; else they are passed through
    beside the global batch. `unlike` are the attributes in which the micro-batches of two ranks leave unlike values,
    `unlike_buffers` such buffers, `not_saved` what a micro-batch changes that no state dict has.
    """

    def __init__(self, built: Scenario, read: Callable[[dict[str, torch.Tensor]], Tensors]) -> None:
        self._model, self._count, self._beside = built.model, built.shares, built.beside
        self._each, self._ran = (built.micro_batches // built.shares if built.shares else 1), 0
        self._read = lambda: read(buffers(built.model))
        self._before: Tensors = {}
        self._start: Snapshot | None = None
        self._first: Snapshot | None = None
        self._left: list[Tensors] = []
        self._attributes, self._unsaved = Values(), Values()
        self.unlike, self.unlike_buffers, self.not_saved = dict[str, None](), dict[str, None](), dict[str, None]()

    def begin(self) -> None:
        self._before, self._left, self._ran = self._read(), [], 0
        self._start = Snapshot(self._model, beside=self._beside) if self._count or self._before else None
        self._unsaved = not_saved(self._model) | of_loss(self._beside) if self._count else {}

    def ran(self) -> None:
        """After a micro-batch's backward pass."""
        self._ran += 1
        if not self._count or not self._start or self._ran % self._each:
            return
        self._left.append(self._read())
        of_loss_now = of_loss(self._beside)
        attributes = values_by_name(self._model, _attributes) | of_loss_now
        if len(self._left) == 1:
            self._first, self._attributes = Snapshot(self._model, beside=self._beside), attributes
            self.not_saved.update(dict.fromkeys(changed(self._unsaved, not_saved(self._model) | of_loss_now)))
        else:
            self.unlike.update(dict.fromkeys(changed(self._attributes, attributes)))
            first, left = self._left[0], self._left[-1]
            apart = (name for name in left if name not in first or not torch.equal(left[name], first[name]))
            self.unlike_buffers.update(dict.fromkeys(apart))
        if len(self._left) < self._count:
            self._start.restore()
        elif self._first:
            self._first.restore()

    def end(self, passes: Callable[[int, int], None]) -> list[Tensors]:
        """The buffers that each rank's share leaves behind, if any moves; `passes(rank, world_size)` runs one's."""
        after = self._read()
        same = after.keys() == self._before.keys() and all(map(torch.equal, after.values(), self._before.values()))
        if self._count or not self._start or same:
            return self._left
        now, first = Snapshot(self._model), self._first
        for rank in range(RANKS):
            self._start.restore()
            if first:
                first.restore()
            passes(rank, RANKS)
            self._left.append(self._read())
            if not rank:
                self._first = Snapshot(self._model, parameters=False)
        now.restore()
        return self._left


def of_loss(beside: Sequence[Any]) -> Values:
    """What a loss keeps (see `loss_state.holders`), as ``loss.NAME``."""
    held: Values = {}
    for holder in beside:
        if isinstance(holder, types.CellType):
            continue
        if isinstance(holder, torch.nn.Module):
            frozen = ((name, each) for name, each in holder.named_parameters() if not each.requires_grad)
            held |= {f"loss.{name}": _copied(tensor) for name, tensor in (*holder.named_buffers(), *frozen)}
        held |= {f"loss.{name}": value for name, value in _attributes(holder)}
    return held


def values_by_name(model: torch.nn.Module, held: Callable[[torch.nn.Module], Iterator[tuple[str, Any]]]) -> Values:
    """What each module of a model holds, by the names that the bare model has for it."""
    return {
        clean(f"{prefix}.{name}" if prefix else name): value
        for prefix, module in model.named_modules()
        for name, value in held(module)
    }


def not_saved(model: torch.nn.Module) -> Values:
    """What a model's modules hold that no state dict has: attributes, and buffers with `persistent=False`."""
    return {**values_by_name(model, _attributes), **values_by_name(model, _not_persistent)}


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The names, in order, of what two copies hold otherwise."""
    return sorted(name for name in before.keys() | after.keys() if not _equal(before.get(name), after.get(name)))


class Snapshot:
    """The state of a model at this moment, which `restore` puts back in place.

    That is every parameter and buffer, and of a module's attributes numbers, texts, tensors, and containers of them.
    What a loss keeps `beside` the model is put back, too.
    """

    def __init__(self, model: torch.nn.Module, parameters: bool = True, beside: Sequence[Any] = ()) -> None:
        modules = [each for each in (model, *beside) if isinstance(each, torch.nn.Module)]
        objects = [each for each in beside if not isinstance(each, (torch.nn.Module, types.CellType))]
        cells = [each for each in beside if isinstance(each, types.CellType)]
        every = [parameter for module in modules for _, parameter in with_shapes(module)] if parameters else []
        self._parameters = [(parameter, local(parameter.data).clone()) for parameter in every]
        self._cells = [(cell, _copied(cell.cell_contents)) for cell in cells if _has_state(cell)]
        self._holders: list[tuple[Any, Values, Values]] = [
            (holder, {name: _copied(b) for name, b in _buffers(holder).items()}, dict(_attributes(holder)))
            for holder in (*(part for module in modules for part in module.modules()), *objects)
        ]

    def restore(self) -> None:
        for parameter, value in self._parameters:
            local(parameter.data).copy_(value)
        for cell, value in self._cells:
            cell.cell_contents = _restored(value)
        for holder, known, attributes in self._holders:
            held = _buffers(holder)
            for name in [name for name in held if name not in known]:
                del held[name]
            held.update({name: _restored(value) for name, value in known.items()})
            for name in [name for name, _ in _state_of(holder) if name not in attributes]:
                delattr(holder, name)
            for name, value in attributes.items():
                vars(holder)[name] = _restored(value)


def _buffers(holder: Any) -> Values:
    """The buffers of a module; an object that is none has none."""
    return holder._buffers if isinstance(holder, torch.nn.Module) else {}


def _has_state(cell: types.CellType) -> bool:
    """Whether a variable of a closure holds what a call may change, or another number."""
    try:
        return isinstance(cell.cell_contents, STATE)
    except ValueError:  # it is not filled yet
        return False


def _state_of(holder: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a module or an object that are state, as they are."""
    return ((name, value) for name, value in vars(holder).items() if name not in OF_TORCH and isinstance(value, STATE))


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    return ((name, _copied(value)) for name, value in _state_of(holder))


def _not_persistent(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    for name in module._non_persistent_buffers_set & module._buffers.keys():
        yield name, _copied(module._buffers[name])


def _copied(value: Any) -> tuple[Any, Any]:
    """An object and a copy of what it holds, as deep as containers go."""
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
        return value, value.detach().clone()
    if isinstance(value, dict):
        return value, {key: _copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple | deque):
        return value, [_copied(each) for each in value]
    return value, set(value) if isinstance(value, set) else None


def _equal(one: tuple[Any, Any] | None, other: tuple[Any, Any] | None) -> bool:
    """Whether two objects held the same when they were copied; None stands for no object."""
    if one is None or other is None:
        return one is other
    (value, held), (other_value, other_held) = one, other
    if type(held) is not type(other_held):
        return False
    if isinstance(held, torch.Tensor):
        return held.shape == other_held.shape and torch.equal(held, other_held)
    if isinstance(held, dict):
        return held.keys() == other_held.keys() and all(_equal(held[key], other_held[key]) for key in held)
    if isinstance(held, list):
        return len(held) == len(other_held) and all(map(_equal, held, other_held))
    if isinstance(held, set):
        return bool(held == other_held)
    return value is other_value or (isinstance(value, PLAIN) and bool(value == other_value))


def _restored(copied: tuple[Any, Any]) -> Any:
    """The object, with what it held."""
    value, held = copied
    if isinstance(held, torch.Tensor):
        if value.shape != held.shape:
            value.data = held.clone()
        elif not torch.equal(value, held):
            value.data.copy_(held)
    elif isinstance(value, dict):
        entries = {key: _restored(each) for key, each in held.items()}
        if [*map(id, chain(*value.items()))] != [*map(id, chain(*entries.items()))]:
            _refill(value, value.update, entries)
    elif isinstance(value, list | deque):
        parts = [_restored(each) for each in held]
        if [*map(id, value)] != [*map(id, parts)]:
            _refill(value, value.extend, parts)
    elif isinstance(value, tuple):
        for each in held:
            _restored(each)
    elif isinstance(value, set) and value != held:
        _refill(value, value.update, held)
    return value


def _refill(value: Any, put: Callable[[Any], None], content: Any) -> None:
    """Let a container hold this again, unless it can't be changed: that of a library may refuse it in any way."""
    with suppress(Exception):
        put(type(content)())  # raises before anything is lost
        value.clear()
        put(content)
