"""The collectives that a model or its loss calls by itself, beside those of its engine."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed
import torch.distributed.nn.functional

ENGINES = "torch", "deepspeed", "accelerate", "faultline"
NAMES = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather gather_object reduce reduce_scatter reduce_scatter_tensor scatter
""".split()


def seen(called: dict[str, None]) -> None:
    """Write down each collective that no engine calls, with its place, as in ``all_reduce (model.py:12)``.

    A model's file has to be imported after this, as it may import a function by name. It holds until the rank ends.
    """
    for module in (torch.distributed, torch.distributed.nn, torch.distributed.nn.functional):
        for name in NAMES:
            if hasattr(module, name):
                setattr(module, name, _noted(module, name, called))


def _noted(module: ModuleType, name: str, called: dict[str, None]) -> Callable[..., Any]:
    function = getattr(module, name)

    @functools.wraps(function)
    def noted(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__", "").partition(".")[0] not in ENGINES:
            called.setdefault(f"{name} ({Path(caller.f_code.co_filename).name}:{caller.f_lineno})")
        return function(*args, **kwargs)

    return noted
