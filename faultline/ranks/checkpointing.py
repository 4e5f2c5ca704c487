"""Gradient checkpointing: switching it on, and seeing from the live run which mode is in force."""

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from faultline.base.paths import is_ours


def enable(model: Any, mode: str) -> None:
    """Set the mode as a user would; `off` leaves the model alone."""
    if mode != "off":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": mode == "reentrant"})


@contextmanager
def functions(around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """While autograd functions are applied through what `around` makes of their `apply`."""
    function = torch.autograd.Function
    whole = inspect.getattr_static(function, "apply")  # of Python, and from torch 2.14 on of C

    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        return whole.__get__(None, cls)(*args, **kwargs)

    with mock.patch.object(function, "apply", classmethod(around(apply))):
        yield


class Watch:
    """Counts what a model's modules do while it trains.

    Checkpointed segments run again inside backward. A reentrant checkpoint is an autograd function, whosever it is,
    that runs modules without grad, and again in its backward pass; so the loop brackets its forward pass with
    `training`. A part of a model that runs without grad by itself (a frozen tower, a target network, a reference with
    adapters off) is none of that, nor is a function that runs a module and has a gradient of its own.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = set(model.modules())
        self._applying = False
        self.recomputed = self.without_grad = self.forwards = 0
        self._in_checkpoint = False
        self._handle = register_module_forward_pre_hook(self._on_forward)

    def _on_forward(self, module: torch.nn.Module, args: Any) -> None:
        if module not in self._modules:
            return
        self.forwards += 1
        if torch._C._current_graph_task_id() != -1:
            self.recomputed += 1
            self._in_checkpoint = self._in_checkpoint or in_checkpoint()
        elif self._applying and not torch.is_grad_enabled():
            self.without_grad += 1

    def training(self) -> AbstractContextManager[None]:
        return functions(self._around)

    def _around(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def run(cls: type, *args: Any, **kwargs: Any) -> Any:
            before, self._applying = self._applying, self._applying or torch.is_grad_enabled()
            ran = self.without_grad
            try:
                result = apply(cls, *args, **kwargs)
            finally:
                self._applying = before
            if ran := self.without_grad - ran:
                self._see_whether_it_runs_again(result, ran)
            return result

        return run

    def _see_whether_it_runs_again(self, result: Any, ran: int) -> None:
        """Take back what ran without grad in a function once its backward pass has run no module."""
        outputs = result if isinstance(result, tuple) else (result,)
        node = next((each.grad_fn for each in outputs if isinstance(each, torch.Tensor) and each.grad_fn), None)
        if not node:
            return
        recomputed: list[int] = []

        def note_begin(gradients: Any) -> None:
            recomputed.append(self.recomputed)

        def note_end(*gradients: Any) -> None:
            if recomputed == [self.recomputed]:  # in its first backward pass, of several
                self.without_grad -= ran

        node.register_prehook(note_begin)
        node.register_hook(note_end)

    def close(self) -> None:
        self._handle.remove()

    def evidence(self) -> dict[str, object]:
        """What was seen; `off` where nothing was, be it that there was no time for it."""
        mode = "reentrant" if self.without_grad else "non-reentrant" if self._in_checkpoint else "off"
        return {"checkpointing_seen": mode, "recomputed": self.recomputed, "forwards": self.forwards}


class Unwatched(Watch):
    """Of a compiled model, whose graphs hooks would break: the mode is the one that its modules are set to."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def training(self) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass

    def evidence(self) -> dict[str, object]:
        return {"checkpointing_seen": configured(self._model)}


def in_checkpoint() -> bool:
    """Whether a checkpoint runs a module again, by its file: a hook of a model's own may do so for other reasons."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame:
        file = frame.f_code.co_filename
        if "checkpoint" in file.rpartition("/")[2] and not is_ours(file):
            return True
        frame = frame.f_back
    return False


class CutOff:
    """Collects the modules that reentrant checkpoints cut off from the loss: they train, and can get no gradient.

    Such a checkpoint is an autograd function that runs modules, whosever it is: torch's, DeepSpeed's or one's own. It
    goes on to no backward pass unless a tensor that is handed to it, in no container, requires a gradient. In another
    checkpoint that is known once the outer one is recomputed. `modules` are the outermost ones that ran in it; where it
    runs none, the one whose method it is, if that has parameters of its own.
    """

    def __init__(self, names: Mapping[torch.nn.Module, str]) -> None:
        self.modules: dict[str, None] = {}
        self._names = names
        self._ran: list[torch.nn.Module] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        handle = register_module_forward_pre_hook(self._on_forward)
        try:
            with functions(self._around):
                yield
        finally:
            handle.remove()

    def _on_forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._ran is not None and module in self._names and not torch.is_grad_enabled():
            self._ran.append(module)

    def _around(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        def run(cls: type, *args: Any, **kwargs: Any) -> Any:
            has_graph = any(isinstance(each, torch.Tensor) and each.requires_grad for each in args)
            if has_graph or self._ran is not None or not torch.is_grad_enabled():
                return apply(cls, *args, **kwargs)
            self._ran = []
            try:
                return apply(cls, *args, **kwargs)
            finally:
                ran, self._ran = self._ran, None
                self._add(dict.fromkeys(ran, True) or dict.fromkeys(self._methods_of(args), False))

        return run

    def _methods_of(self, args: Iterable[Any]) -> Iterator[torch.nn.Module]:
        for each in args:
            while isinstance(each, partial):
                each = each.func
            module = getattr(each, "__self__", None)
            if isinstance(module, torch.nn.Module) and module in self._names:
                yield module

    def _add(self, modules: Mapping[torch.nn.Module, bool]) -> None:
        """Add those that train, with all in them or by what is their own."""
        names = [self._names[module] for module in modules]
        for name, (module, whole) in zip(names, modules.items(), strict=True):
            within = name.startswith(tuple(f"{other}." for other in names))
            if not within and any(each.requires_grad for each in torch.nn.Module.parameters(module, recurse=whole)):
                self.modules.setdefault(name)


def configured(model: Any) -> str:
    """The mode that a model's own modules are set to; one that a scenario puts around them by hand is not seen."""
    for module in model.modules():
        function = getattr(module, "_gradient_checkpointing_func", None)
        if function is not None and getattr(module, "gradient_checkpointing", False):
            return "reentrant" if getattr(function, "keywords", {}).get("use_reentrant") else "non-reentrant"
    return "off"
