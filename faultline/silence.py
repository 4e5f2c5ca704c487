"""What logs without an error tell of runs that learn nothing: no step has a gradient, or a library only warned."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from faultline import known, strategies
from faultline.catalogue import failures
from faultline.hints import Hints
from faultline.known import Place
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


@dataclass(frozen=True)
class Warned:
    """A warning that a failure prints and nothing else, the first in a log; `told_by` is when it is more than that."""

    failure: str
    told_by: str
    text: str
    file: str
    line: int


class Warnings:
    """Takes the lines of a log, and keeps the first with the warning of each failure that has one."""

    def __init__(self) -> None:
        self._found: dict[str, Warned] = {}

    @property
    def full(self) -> bool:
        return all(name in self._found for name, _, _ in _warnings())

    def take(self, line: Line) -> None:
        for name, pattern, told_by in _warnings():
            if name not in self._found and pattern.search(line.text[:LONGEST]):
                self._found[name] = Warned(name, told_by, line.text.strip()[:LONGEST], line.file, line.number)

    def warned(self, hints: Hints) -> tuple[Warned, ...]:
        """Those of failures that do so without an error where the hints leave it."""
        return tuple(warned for warned in self._found.values() if silently(warned.failure, hints))


@functools.cache
def _warnings() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    return tuple(
        (name, re.compile(pattern), told_by)
        for name, failure in failures().items()
        for pattern, told_by in failure.warns.items()
    )


@functools.cache
def warnings() -> bytes:
    """The pattern of a line that has the warning of any failure."""
    return "|".join(pattern.pattern for _, pattern, _ in _warnings()).encode()


def silently(name: str, hints: Hints) -> list[str]:
    """The strategies under which a failure's cells train wrongly without an error, as far as the hints leave them."""
    places = known.silent(failures()[name], ("unmoved", "differs", "ranks-differ", "nan"))
    return _left(places, hints)


def _left(places: Iterable[Place], hints: Hints) -> list[str]:
    """The strategies of places that are not known to be others than the log's."""
    left = {
        strategy
        for strategy, mode in places
        if (not hints.strategies or strategy in hints.strategies) and (not hints.modes or mode in hints.modes)
    }
    return sorted(left, key=strategies.names().index)


def alike(silence: Silence, hints: Hints) -> dict[str, list[str]]:
    """The failures whose cells end so without an error, each with its strategies, as far as the hints leave them."""
    wanted = {{"0": "unmoved", "nan": "nan"}[norm] for norm in silence.norm.split(" or ")}
    found = {name: _left(known.silent(failure, wanted), hints) for name, failure in failures().items()}
    return {name: own for name, own in found.items() if own}
