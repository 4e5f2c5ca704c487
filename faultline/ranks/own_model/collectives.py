"""What a model or its loss asks of other ranks by itself, beside its engine: collectives, and which rank it is."""

import functools
import os
import sys
import types
from collections.abc import Callable, Container
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed
import torch.distributed.nn.functional

from faultline.base.paths import is_ours

ENGINES = "torch", "deepspeed", "accelerate", "faultline"
NAMES = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather gather_object get_rank reduce reduce_scatter reduce_scatter_tensor scatter
""".split()
VARIABLES = "RANK", "LOCAL_RANK"


def record_calls(called: dict[str, None], modules: Container[torch.nn.Module]) -> None:
    """Write down each call of these that no engine makes, with its caller and place, as in ``all_reduce in the loss
    (clip.py:12)``; the model has these `modules`, once it is made.

    A model's file has to be imported after this, as it may import a function by name. It holds until the rank ends.
    """
    for module in (torch.distributed, torch.distributed.nn, torch.distributed.nn.functional):
        for name in NAMES:
            if hasattr(module, name):
                setattr(module, name, _noted(module, name, called, modules))
    read = os._Environ.__getitem__

    def noted(environment: Any, name: str) -> str:
        if name in VARIABLES:
            _note(called, name, modules)
        return read(environment, name)

    os._Environ.__getitem__ = noted  # type: ignore[method-assign, assignment]


def _noted(
    module: ModuleType, name: str, called: dict[str, None], modules: Container[torch.nn.Module]
) -> Callable[..., Any]:
    function = getattr(module, name)

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        _note(called, name, modules)
        return function(*args, **kwargs)

    return noted


def _note(called: dict[str, None], name: str, modules: Container[torch.nn.Module]) -> None:
    """Write down the call of the function that notes it, unless an engine made it."""
    caller: types.FrameType | None = sys._getframe(2)
    while caller and caller.f_globals.get("__name__") in ("os", "collections.abc"):
        caller = caller.f_back
    if not caller or is_ours(caller.f_code.co_filename):
        return
    name_of_caller = caller.f_globals.get("__name__", "")
    native = name_of_caller.startswith("transformers.distributed.")  # an engine, too
    if name_of_caller.partition(".")[0] not in ENGINES and not native:
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        called.setdefault(f"{name}{_caller(caller, modules)} ({place})")


def _caller(frame: types.FrameType | None, modules: Container[torch.nn.Module]) -> str:
    """Whether the model or its loss makes a call; empty for a backward pass outside of any module, which is of both."""
    while frame:
        if isinstance(module := frame.f_locals.get("self"), torch.nn.Module) and module in modules:
            return " in the model"
        frame = frame.f_back
    return "" if torch._C._current_graph_task_id() != -1 else " in the loss"
