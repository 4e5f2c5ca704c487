"""Gradient checkpointing: switching it on, and seeing from the live run which mode is in force."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook


def enable(model: Any, mode: str) -> None:
    """Set the mode as a user would; `off` leaves the model alone."""
    if mode != "off":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": mode == "reentrant"})


class Watch:
    """Counts what a model's modules do while it trains.

    Checkpointed segments run again inside backward. What runs inside the
    reentrant variant's first pass runs without grad although the loop around it
    records a graph, so the loop brackets its forward pass with `training`. A pass of the whole model without grad,
    as adapters that are switched off make the reference of a loss, is none of that.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model, self._mine = model, set(model.modules())
        self._whole_with_grad = True
        self.recomputed = 0
        self.without_grad = 0
        self.forwards = 0
        self._in_loop = False
        self._handle = register_module_forward_pre_hook(self._on_forward)

    def _on_forward(self, module: torch.nn.Module, args: Any) -> None:
        if module not in self._mine:
            return
        self.forwards += 1
        if module is self._model:
            self._whole_with_grad = torch.is_grad_enabled()
        if torch._C._current_graph_task_id() != -1:
            self.recomputed += 1
        elif self._in_loop and self._whole_with_grad and not torch.is_grad_enabled():
            self.without_grad += 1

    @contextmanager
    def training(self) -> Iterator[None]:
        self._in_loop = True
        try:
            yield
        finally:
            self._in_loop = False

    def close(self) -> None:
        self._handle.remove()

    def evidence(self) -> dict[str, Any]:
        """What was seen; `off` where nothing was, be it that there was no time for it."""
        if self.without_grad:
            mode = "reentrant"
        elif self.recomputed:
            mode = "non-reentrant"
        else:
            mode = "off"
        return {
            "checkpointing_seen": mode,
            "recomputed": self.recomputed,
            "forwards": self.forwards,
        }


def configured(model: Any) -> str:
    """The mode that a model's own modules are set to; one that a scenario puts around them by hand is not seen."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if function is not None and getattr(module, "gradient_checkpointing", False):
            return "reentrant" if getattr(function, "keywords", {}).get("use_reentrant") else "non-reentrant"
    return "off"
