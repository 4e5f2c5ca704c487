"""The random numbers that somebody's own model or loss draws: seen, alike on a rank and in one process, or off."""

import functools
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from faultline.base.paths import is_ours

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ENGINES = "torch", "deepspeed", "accelerate", "numpy", "random"


def held_generators(holders: Iterable[Any]) -> list[Any]:
    """The generators that modules and objects hold as attributes."""
    kinds = torch.Generator, random.Random, np.random.Generator, np.random.RandomState
    every = (value for each in holders if hasattr(each, "__dict__") for value in vars(each).values())
    return list({id(value): value for value in every if isinstance(value, kinds)}.values())


def seed(step: int, rank: int, generators: Iterable[Any]) -> None:
    """Let a rank's forward pass in a step draw what one process draws for its rows; generators of one's own, which
    ranks may have alike on purpose, draw the same on all of them."""
    seed_default(1000 * step + rank + 1)
    for each in generators:
        if isinstance(each, torch.Generator):
            each.manual_seed(step)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = type(each.bit_generator)(step).state
        else:
            each.seed(step)


def seed_default(number: int) -> None:
    """Seed the generators of torch, Python and numpy that everybody draws from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)


def states(generators: Iterable[Any]) -> tuple[Any, ...]:
    """What all generators would go on with, as something to compare."""
    return (_default(), *map(_state, generators))


def _default() -> tuple[bytes, int, bytes]:
    """Of torch (on the GPU as well, if it is in use), Python and numpy."""
    drawn: Any = np.random.get_state()
    _, keys, at, *_ = drawn
    gpu = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else b""
    return (
        torch.get_rng_state().numpy().tobytes() + gpu,
        hash(random.getstate()),
        keys.tobytes() + bytes(str(at), "ascii"),
    )


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return repr(generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state())


def places(run: Callable[[], object], generators: Iterable[Any]) -> list[str]:
    """The lines that draw while something runs, as ``model.py:12 in forward``: of one's own code, or of a library that
    is no engine."""
    drawn: dict[str, None] = {}
    known, at = states(generators), ""

    def look(frame: types.FrameType | None) -> None:
        """Blame the line that ran since the last look, if anything was drawn, and remember which line runs now."""
        nonlocal known, at
        if (now := states(generators)) != known:
            known = now
            drawn.setdefault(at)
        here = next(filter(_is_theirs, _outwards(frame)), None)
        at = f"{Path(here.f_code.co_filename).name}:{here.f_lineno} in {here.f_code.co_name}" if here else ""

    def trace(frame: types.FrameType, event: str, value: Any) -> Any:
        if not _is_theirs(frame):
            return None
        look(frame.f_back if event == "return" else frame)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        look(None)
    return [place for place in drawn if place]


def _is_theirs(frame: types.FrameType) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return not is_ours(frame.f_code.co_filename) and package not in ENGINES


def _outwards(frame: types.FrameType | None) -> Iterator[types.FrameType]:
    while frame:
        yield frame
        frame = frame.f_back


def switch_off_dropout() -> None:
    """Switch dropout off, whose masks ranks draw otherwise than one process, in functions, also those of attention.

    A model's file has to be imported after this, as it may import a function by name. It holds until the process ends.
    """
    for name in DROPOUTS:
        setattr(functional, name, _drops_nothing(getattr(functional, name)))
    functional.scaled_dot_product_attention = _attends_to_all(functional.scaled_dot_product_attention)


def switch_off_dropout_in(model: torch.nn.Module) -> None:
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
