"""Logs of runs that end without an error and yet learn nothing: no step that they log has a gradient."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from faultline import known, strategies
from faultline.catalogue import failures
from faultline.hints import Hints
from faultline.logs import Line

LOGGED = rb"grad_norm"  # what trainers log; transformers does so since 4.38
ENOUGH = 20_000  # steps that are read
FEWEST = 3  # steps that say something: the first ones of a run in half precision may overflow
LONGEST = 4000  # characters of a line that are searched

_NORM = re.compile(
    r"(?<!\w)grad_norm['\"]?\s{0,3}[:=]\s{0,8}['\"]?(nan|[+-]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:e[+-]?\d{1,4})?)(?![\w.])",
    re.IGNORECASE,
)
# Where all answers to a prompt have the same reward there is nothing to learn from, and no gradient is right.
_ALIKE = re.compile(r"['\"]reward_std['\"]: ?['\"]?0(?:\.0{0,20})?['\"]?[,}]")


@dataclass(frozen=True)
class Silence:
    """Steps without a gradient, from the first to the last line that logs one; `norm` is 0, nan, or both."""

    norm: str
    steps: int
    file: str
    first: int
    last: int


class Steps:
    """Takes the lines of a log until one logs a gradient."""

    def __init__(self) -> None:
        self.learns = False
        self._norms: list[str] = []
        self._count = 0
        self._lines: list[Line] = []

    @property
    def full(self) -> bool:
        """Whether no line can change anything any more."""
        return self.learns or self._count >= ENOUGH

    def take(self, line: Line) -> None:
        if self.full or not (match := _NORM.search(line.text[:LONGEST])):
            return
        norm = float(match[1])
        if not math.isnan(norm) and norm:
            self.learns = True
        elif norm or not _ALIKE.search(line.text[:LONGEST]):
            told = "nan" if norm else "0"
            self._norms += [told] if told not in self._norms else []
            self._count += 1
            self._lines = [*self._lines[:1], line]

    def silence(self) -> Silence | None:
        """What was seen of a run that logs no gradient in any of its steps, if they are enough."""
        if self.learns or self._count < FEWEST:
            return None
        first, last = self._lines
        return Silence(" or ".join(self._norms), self._count, last.file, first.number, last.number)


def alike(silence: Silence, hints: Hints) -> dict[str, list[str]]:
    """The failures whose cells end so without an error, each with its strategies, as far as the hints leave them."""
    wanted = {{"0": "unmoved", "nan": "nan"}[norm] for norm in silence.norm.split(" or ")}
    found = {
        name: {
            strategy
            for strategy, mode in known.silent(failure, wanted)
            if (not hints.strategies or strategy in hints.strategies) and (not hints.modes or mode in hints.modes)
        }
        for name, failure in failures().items()
    }
    return {name: sorted(own, key=strategies.names().index) for name, own in found.items() if own}
