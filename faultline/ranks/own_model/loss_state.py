"""What a loss keeps beside the model: modules, objects and variables whose state a call of it may change."""

import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

DEEPEST = 3  # from a loss to what it holds


def holders(loss: Callable[..., Any] | None, model: torch.nn.Module) -> list[Any]:
    """The modules, objects with attributes and cells of closures that a loss can reach, but for the model."""
    inside = {id(module) for module in model.modules()}
    reached: dict[int, Any] = {}

    def look(value: Any, depth: int) -> None:
        if depth > DEEPEST or id(value) in inside or id(value) in reached or isinstance(value, (type, torch.Tensor)):
            return
        if isinstance(value, (torch.nn.Module, types.CellType)) or (_is_state(value) and vars(value)):
            reached[id(value)] = value
        if not isinstance(value, torch.nn.Module):
            for part in _parts(value):
                look(part, depth + 1)

    look(loss, 0)
    return [*reached.values()]


def parameters(holders: Sequence[Any], model: torch.nn.Module) -> list[str]:
    """The trainable parameters of what a loss keeps, which its model hasn't."""
    of_model = {id(parameter) for parameter in model.parameters()}
    return [
        name
        for module in holders
        if isinstance(module, torch.nn.Module)
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and id(parameter) not in of_model
    ]


def unregistered(model: torch.nn.Module) -> list[str]:
    """The attributes of a model's modules that hold trainable weights as plain tensors, or in a plain list or
    dictionary, where `parameters()` doesn't find them."""
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, (list, tuple, dict, torch.Tensor))
        and not (isinstance(module, torch.nn.RNNBase) and name == "_flat_weights")  # torch's own list
        and any(each.requires_grad and id(each) not in registered for each in _weights(value))
    ]


def _weights(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The parameters that a value has, in modules and containers, and the tensors that nothing has computed."""
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.Tensor) and value.is_leaf:
        yield value
    elif isinstance(value, (list, tuple, dict)) and depth < DEEPEST:
        for each in value.values() if isinstance(value, dict) else value:
            yield from _weights(each, depth + 1)


def _is_state(value: Any) -> bool:
    """Whether an object has attributes of its own that are state: no function, module of Python or container has."""
    functions = types.FunctionType, types.MethodType, types.BuiltinFunctionType
    return hasattr(value, "__dict__") and not isinstance(value, (*functions, types.ModuleType, partial))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from (*(value.__closure__ or ()), *(value.__defaults__ or ()))
    elif isinstance(value, types.CellType):
        try:
            yield value.cell_contents
        except ValueError:  # it is not filled yet
            return
    elif _is_state(value):
        yield from vars(value).values()
