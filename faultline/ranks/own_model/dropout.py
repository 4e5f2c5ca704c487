"""Dropout of somebody's own model is off: ranks draw other masks than one process."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def off() -> None:
    """Switch it off in the functions that draw masks, those of modules and of attention as well.

    A model's file has to be imported after this, as it may import a function by name. It holds until the process ends.
    """
    for name in NAMES:
        setattr(functional, name, _drops_nothing(getattr(functional, name)))
    functional.scaled_dot_product_attention = _attends_to_all(functional.scaled_dot_product_attention)


def off_in(model: torch.nn.Module) -> None:
    """Switch it off in modules: those of recurrent layers draw in libraries, and `share_dropout` replaces others."""
    for module in model.modules():
        if isinstance(module, torch.nn.RNNBase):
            module.dropout = 0.0
        elif isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.p = 0.0


def _drops_nothing(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def dropout(input: Any, p: float = 0.5, *args: Any, **kwargs: Any) -> Any:
        return function(input, 0.0, *args, **kwargs)

    return dropout


def _attends_to_all(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *args: Any, **kwargs: Any
    ) -> Any:
        return function(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attention
