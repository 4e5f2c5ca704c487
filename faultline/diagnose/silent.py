"""Logs without an error, of runs that learn nothing: no step has a gradient, or a library only warned."""

import functools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from faultline import strategies
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.diagnose.lines import Line
from faultline.diagnose.signs import TRACEBACK, needed
from faultline.observations import measured
from faultline.observations.matching import Hints, fits

GRAD_NORM = "grad_norm"  # as trainers log it; transformers does so since 4.38
ENOUGH = 1000  # losses of a rank that are compared
FEWEST = 3  # steps that count without a number before them: the first ones in half precision may overflow
SKIPS = "In fp16 a few such steps may be skipped, and the next ones have a number again."
LONGEST = 4000  # characters of a line that are searched

WRONGLY = ("unmoved", "differs", "ranks-differ", "buffers-apart", "buffers-differ", "nan", "checkpoint-lacks")
"""The ends of cells that show no more than a warning."""

NORM = re.compile(
    r"(?<!\w)grad_norm['\"]?\s{0,3}[:=]\s{0,8}['\"]?(nan|[+-]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:e[+-]?\d{1,4})?)(?![\w.])",
    re.IGNORECASE,
)
LOSS = re.compile(
    r"(?<!\w)loss['\"]?\s{0,3}[:=]\s{0,8}['\"]?(nan|[+-]?(?:\d{1,20}\.?\d{0,20}|\.\d{1,20})(?:e[+-]?\d{1,4})?)(?![\w.])",
    re.IGNORECASE,
)
# A line of a training log by its beginning, and what such a one has a space before: a sentence has other words there.
COUNTED = re.compile(
    r"\W{0,8}(?:train(?:ing)?\W{1,3})?(?:global[_ ])?(?:step|iter(?:ation)?|epoch|batch)\W{1,12}\d", re.IGNORECASE
)
SPACED = re.compile(
    r"(?<!\w)(?<!the )(loss|grad_norm)\s{1,8}"
    r"(?=(?:nan|[+-]?[\d.]{1,40}(?:e[+-]?\d{1,4})?)\s{0,8}(?:$|[^\w\s.]|(?<=\s)[\w/]{1,40}[\s:=]{1,8}(?:[+-]?\.?\d|nan)))",
    re.IGNORECASE,
)
# Where all answers to a prompt have the same reward there is nothing to learn from, and no gradient is right. Where the
# learning rate is 0 as well, no step was taken: at the start of a warm-up, or where a loss scaler skipped it.
ALIKE = re.compile(r"['\"](?:reward_std|learning_rate)['\"]: ?['\"]?0(?:\.0{0,20})?['\"]?[,}]")


@dataclass(frozen=True)
class Silence:
    """Steps without a gradient, from the first to the last line that logs one; `norm` is 0, nan, or both.

    `after` is how many steps had one before them, and `figure` what they log. `failures` train so without an error on
    today's stack, each under the strategies that the log leaves; `earlier` did so on older ones only.
    """

    norm: str
    steps: int
    file: str
    first: int
    last: int
    failures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    earlier: Mapping[str, Sequence[str]] = field(default_factory=dict)
    after: int = 0
    figure: str = GRAD_NORM

    @property
    def skips(self) -> str:
        """Another explanation: steps that a loss scaler skips."""
        return SKIPS if self.figure == GRAD_NORM and self.steps < FEWEST else ""


@dataclass(frozen=True)
class SameLosses:
    """Ranks that log one loss after the other to the same digits, so many times."""

    ranks: tuple[int, ...]
    steps: int
    file: str
    first: int


class StepCount:
    """Steps of a log by one figure: those since the last one that had a number, which may be none."""

    def __init__(self) -> None:
        self.learned = 0  # steps with a number other than 0
        self.norms: dict[str, None] = {}  # of the steps since then, as are the others
        self.count = 0
        self.lines: list[Line] = []

    def take(self, value: float, line: Line) -> None:
        if value and not math.isnan(value):
            self.learned, self.count, self.lines, self.norms = self.learned + 1, 0, [], {}
        else:
            self.norms["nan" if value else "0"] = None
            self.count += 1
            self.lines = [*self.lines[:1], line]


class Steps:
    """Takes the lines that log a gradient or a loss: which steps had a gradient, and what each rank's loss was."""

    words = f"{GRAD_NORM}|[Ll]oss|LOSS"
    """The pattern of the lines that count."""

    def __init__(self) -> None:
        self._gradients, self._losses = StepCount(), StepCount()
        self._by_rank: dict[int, list[str]] = {}
        self._first: Line | None = None

    def take(self, line: Line) -> None:
        text = line.text[:LONGEST]
        text = SPACED.sub(r"\1: ", text) if COUNTED.match(text) else text
        norm, loss = NORM.search(text), LOSS.search(text)
        if loss and line.rank is not None and len(losses := self._by_rank.setdefault(line.rank, [])) < ENOUGH:
            losses.append(loss[1])
            self._first = self._first or line
        if norm and not (float(norm[1]) == 0 and ALIKE.search(text)):
            self._gradients.take(float(norm[1]), line)
        elif loss and not norm:
            self._losses.take(float(loss[1]) or 1.0, line)  # a loss of 0 is none that went wrong

    def silence(self, hints: Hints) -> Silence | None:
        """The steps without a gradient of a run that logs none at all, if they are enough, or nothing but nan from some
        step on. A norm of 0 after others may be right."""
        run = self._gradients if self._gradients.learned or self._gradients.count else self._losses
        if not run.count or ([*run.norms] != ["nan"] if run.learned else run.count < FEWEST):
            return None
        first, last = run.lines[0], run.lines[-1]
        wanted = [{"0": "unmoved", "nan": "nan"}[norm] for norm in run.norms]
        every = {name: _silently(failure, wanted, hints) for name, failure in failures().items()}
        today = {name: _silently(failure, wanted, hints, today=True) for name, failure in failures().items()}
        earlier = {name: [each for each in names if each not in today[name]] for name, names in every.items()}
        alike, before = ({name: names for name, names in by.items() if names} for by in (today, earlier))
        figure = GRAD_NORM if run is self._gradients else "loss"
        norm = " or ".join(run.norms)
        return Silence(norm, run.count, last.file, first.number, last.number, alike, before, run.learned, figure)

    def same_losses(self) -> SameLosses | None:
        """The ranks that all log the same losses, of several values, if there are several ranks."""
        every = [*self._by_rank.values()]
        steps = min(map(len, every), default=0)
        if len(every) < 2 or not self._first or len({tuple(losses[:steps]) for losses in every}) > 1:
            return None
        if len({*every[0][:steps]}) < FEWEST:
            return None
        return SameLosses(tuple(sorted(self._by_rank)), steps, self._first.file, self._first.number)


@dataclass(frozen=True)
class WarningLine:
    """The first line with a warning that is all that a failure prints, and what makes it more than harmless.

    `strategies` are those under which it may train wrongly without an error.
    """

    failure: str
    distinguished_by: str
    text: str
    file: str
    line: int
    strategies: Sequence[str] = ()


class Warnings:
    """Takes the lines of a log, and remembers the first with the warning of each failure that has one.

    A warning before a traceback is forgotten: that run raised, though the log may be cut before it says what.
    `traceback` is the line in which the first one begins.
    """

    def __init__(self) -> None:
        self._first: dict[str, WarningLine] = {}
        self.traceback: Line | None = None

    @property
    def words(self) -> str:
        return _warning_words()

    def take(self, line: Line) -> None:
        text = line.text[:LONGEST]
        if TRACEBACK in text:
            self._first.clear()
            self.traceback = self.traceback or line
        for name, pattern, distinguished_by in warnings():
            if name not in self._first and pattern.search(text):
                self._first[name] = WarningLine(name, distinguished_by, text.strip(), line.file, line.number)

    def warned(self, hints: Hints) -> tuple[WarningLine, ...]:
        """The warnings of failures that may train wrongly without an error under the log's strategy and mode."""
        every = [
            replace(each, strategies=_silently(failures()[each.failure], WRONGLY, hints))
            for each in self._first.values()
        ]
        return tuple(warned for warned in every if warned.strategies)


@functools.cache
def warnings() -> tuple[tuple[str, re.Pattern[str], str], ...]:
    """Each failure that prints no more than a warning, with its pattern, and what makes it more than harmless."""
    return tuple(
        (name, re.compile(each.pattern), each.distinguished_by)
        for name, failure in failures().items()
        for each in failure.recognition.warning
    )


@functools.cache
def _warning_words() -> str:
    """The pattern of the words of the lines that count: those with the warning of any failure, or a traceback."""
    return needed([re.escape(TRACEBACK), *(pattern.pattern for _, pattern, _ in warnings())])


def _silently(failure: Failure, signatures: Collection[str], hints: Hints, today: bool = False) -> list[str]:
    """The strategies under which a failure's cells end like this without an error, as far as the hints leave them."""
    places = measured.silent_today(failure, signatures) if today else measured.silent(failure, signatures)
    names = {place[0] for place in places if fits(place, hints.strategies, hints.modes)}
    return sorted(names, key=strategies.names().index)
