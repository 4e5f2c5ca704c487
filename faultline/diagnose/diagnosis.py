"""Decides which error of a log is the first cause and which failure it is, and what recorded runs know of that."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.catalogue import REMEDIES
from faultline.cells.cell import Cell
from faultline.diagnose.context import Collector
from faultline.diagnose.events import TIMEOUT, Event, Events
from faultline.diagnose.lines import Line, Wanted
from faultline.diagnose.messages import MessageReader
from faultline.diagnose.prose import NearMatch, ProseReader, candidates
from faultline.diagnose.reader import EventReader
from faultline.diagnose.silent import SameLosses, Silence, Steps, WarningLine, Warnings
from faultline.observations import ambiguity, history, matching, measured, remedies
from faultline.observations.matching import LIKELY, SET, Hints, Match, Support, equals, fitting, sharing
from faultline.observations.remedies import Fate
from faultline.observations.store import MeasuredStack, Row
from faultline.observations.wording import searchable

NAMED, SEVERAL, NOT_THERE = "named", "one of several", "not in the catalogue"
"""The three answers."""


@dataclass(frozen=True)
class Diagnosis:
    """The answer to a log.

    match    the failure, if one is named
    several  the two or three failures that it may be, the likeliest first, if none is named
    alike    the failures that have an error of the log and are excluded
    cause    the error that the answer is about: the match's, or else the first cause
    silence  for a log without an error: steps without a gradient, from the first one or from some step on
    same     for a log without an error: ranks that log the same losses
    warned   for a log without an error: the warnings in it that failures print
    cut      for a log without an error: the line in which a traceback begins, whose last line is missing
    empty    whether there was nothing to read
    by_words where no error is known: the failures whose symptoms the words of a report come nearest to
    """

    match: Match | None
    several: tuple[Match, ...]
    alike: tuple[Match, ...]
    cause: Event | None
    events: Events
    hints: Hints
    silence: Silence | None = None
    warned: tuple[WarningLine, ...] = ()
    empty: bool = False
    cut: Line | None = None
    same: SameLosses | None = None
    by_words: tuple[NearMatch, ...] = ()

    @property
    def answer(self) -> str:
        return NAMED if self.match else SEVERAL if self.several else NOT_THERE

    @property
    def failure(self) -> str:
        """The name of the failure; empty if none is named."""
        return self.match.failure.name if self.match else ""

    @property
    def search(self) -> str:
        """The parts of the first cause that don't differ from run to run: what to search for elsewhere."""
        return searchable(measured.beginning(ambiguity.without_prose(self.cause.headline))) if self.cause else ""


def diagnose(read: Callable[[Wanted], Iterable[Line]], options: Hints | None = None) -> Diagnosis:
    """The answer to a log or a report, which is read to its end; what the options name outranks what the text shows.

    `read` gives the text's lines, at least those that have the pattern which its argument returns.
    """
    intake = Intake()
    for each in read(intake.pattern):
        intake.take(each)
    answer = _by_errors(intake, options)
    if answer.answer != NOT_THERE:
        return answer
    return replace(answer, by_words=candidates(intake.prose.text, answer.hints))


def _by_errors(intake: Intake, options: Hints | None) -> Diagnosis:
    """The answer to a log by its errors, or without one, by its numbers and warnings."""
    events = intake.reader.events()
    cause = events.cause()
    if (not cause or cause.follows) and (alone := intake.alone.event()):
        cause, events = alone, replace(events, events=(alone, *events.events))
    chain = events.chain(cause) if cause else []
    hints = intake.collector.hints("\n".join(f"{event.frames}\n{event.text}" for event in chain))
    if options:
        hints = _with_options(hints, options)
    if cause:
        answer = decide(events, cause, hints)
        if answer.answer == NOT_THERE and cause.kind == "line" and (alone := intake.alone.event()):
            quoted = decide(replace(events, events=(alone, *events.events)), alone, hints)
            return answer if quoted.answer == NOT_THERE else quoted
        return answer
    silence, warned = intake.steps.silence(hints), intake.warnings.warned(hints)
    lost, same = intake.warnings.traceback, intake.steps.same_losses()
    return Diagnosis(None, (), (), None, events, hints, silence, warned, intake.empty, lost, same)


def decide(events: Events, cause: Event, hints: Hints) -> Diagnosis:
    """The answer to a log with an error.

    1. Which error counts: the first cause (`Events.cause`). Where errors were raised while each other was handled,
       the last one that has a failure counts, as it knows the most.
    2. Which failure has it: `matching.fitting` has those with this error, the best first, and `matching.judge`
       excludes some. The first that isn't excluded is the answer.
    3. Where it has no more than a mechanism that several failures share, where another one is as good in all respects,
       or where all are excluded and nothing but the error's words is there to decide between several, it is one of
       these: `ambiguity.possible`.
    4. Else there is no answer, and `alike` has the reasons.
    """
    raised = [event for event in reversed(events.chain(cause)) if not event.follows or event.type == TIMEOUT]
    every = [(event, match) for event in raised for match in fitting(event.text, hints)]
    alike = tuple({match.failure.name: match for _, match in every if not match.sure}.values())
    for event, match in every:
        if match.sure:
            others = sharing(match, (other for _, other in every))
            if others := others or equals(match, (other for each, other in every if each is event)):
                return Diagnosis(None, ambiguity.likeliest((match, *others), hints), alike, event, events, hints)
            return Diagnosis(match, (), alike, event, events, hints)
    for event in raised:
        excluded = (match for each, match in every if each is event)
        if either := ambiguity.possible(event.text, excluded, hints):
            return Diagnosis(None, either, alike, event, events, hints)
    return Diagnosis(None, (), alike, cause, events, hints)


def _with_options(hints: Hints, options: Hints) -> Hints:
    asked = {*options.strategies, *(SET[mode] for mode in options.modes if mode in SET)}
    return replace(
        hints,
        strategies=options.strategies or hints.strategies,
        modes=options.modes or hints.modes,
        versions={**hints.versions, **options.versions},
        asked="\n".join(sorted(asked)),
    )


class Intake:
    """Reads a log once with all readers; `empty` until there was a byte to read."""

    def __init__(self) -> None:
        self.reader, self.collector, self.steps, self.warnings = EventReader(), Collector(), Steps(), Warnings()
        self.all = self.reader, self.collector, self.steps, self.warnings
        self.alone, self.prose = MessageReader(), ProseReader()
        self.empty = True

    def pattern(self) -> re.Pattern[bytes] | None:
        """The pattern of lines that can still change the answer; none while a traceback is open: every line can."""
        self.empty = False
        return (
            None
            if self.reader.busy or self.alone.open or self.prose.open
            else _compiled(tuple(reader.words for reader in self.all))
        )

    def take(self, line: Line) -> None:
        self.alone.take(line)
        self.prose.take(line)
        for reader in self.all:
            reader.take(line)


@functools.cache
def _compiled(words: tuple[str, ...]) -> re.Pattern[bytes]:
    # It searches many lines at once.
    return re.compile("|".join(filter(None, words)).encode() or rb"(?!)", re.MULTILINE)


@dataclass(frozen=True)
class Details:
    """Recorded runs beside an answer.

    reason    why a failure is no more than likely
    fates     remedies and what became of them
    each      of several failures, the first remedy that is verified and the first that helps in places, beside those
              that help against all, with the failure's name
    happens   where the failure ends with this error today
    near      the measured stack that is nearest to the log's versions, and how many cells had which outcome there
    commands  that reproduce the failure; `export` is the cell that shows it today
    seen      recorded runs that ended with the error, of a failure that is named or one of several
    """

    reason: str = ""
    fates: Sequence[Fate] = ()
    each: Sequence[tuple[str, Fate]] = ()
    happens: Sequence[str] = ()
    near: tuple[MeasuredStack, Mapping[str, int]] | None = None
    commands: Sequence[str] = ()
    export: Cell | None = None
    seen: Sequence[tuple[Cell, Row]] = ()


def details(diagnosis: Diagnosis) -> Details:
    """The recorded runs beside an answer."""
    match, cause, hints = diagnosis.match, diagnosis.cause, diagnosis.hints
    if not match or not cause:
        names = {each.failure.name for each in diagnosis.several}
        ended = measured.runs_with_error(cause.text) if cause and names else []
        seen = [run for run in ended if run[0].failure in names]
        fates = ambiguity.helps_all(diagnosis.several) if names else ()
        return Details(
            fates=fates, seen=seen, each=_remedies_of_each(diagnosis.several, {fate.claim.text for fate in fates})
        )
    fates = remedies.fates(match.failure, match.signature, match.where, hints.versions)
    cell, date = measured.cell_for(match.failure, match.signature, match.where)
    near = history.nearest_stack(match.failure, hints.versions)
    return Details(
        reason=_why_likely(match, hints) if match.sure == LIKELY else "",
        fates=matching.worded(fates, match.mechanism),
        happens=matching.happens(match),
        near=(near[0], history.count_outcomes(near[1], match.where)) if near else None,
        commands=matching.commands(match),
        export=None if date else cell,
        seen=measured.runs_with_error(cause.text),
    )


def _remedies_of_each(several: Sequence[Match], besides: Collection[str]) -> list[tuple[str, Fate]]:
    chosen = []
    for match in several:
        every = remedies.fates(match.failure, match.signature, match.where)
        fates = [fate for fate in every if fate.claim.kind in REMEDIES and fate.claim.text not in besides]
        for word in ("verified", "conditional"):
            chosen += [(match.failure.name, fate) for fate in fates if fate.word == word][:1]
    return chosen


def _why_likely(match: Match, hints: Hints) -> str:
    """Why an answer is no more than likely, and the option that would decide it."""
    if match.mechanism:
        return "the error shows the mechanism; the log doesn't show whether it is this failure's model"
    if match.only_if:
        return f"if {match.only_if}, which this log doesn't show"
    if match.later:
        return "such a run left the checkpoint that is loaded here; this log doesn't show that run's strategy"
    if history.disappeared(match.failure, match.signature, match.where, hints.versions):
        return "our runs ended with this error, but none with your versions or the nearest that were measured"
    if matching.support(match.failure, match.signature, hints) is Support.OPTIONS:
        return "only your options point to this failure: other mistakes raise this error too"
    if hints.modes and hints.modes.isdisjoint(mode for _, mode in match.where):
        return "nothing excludes it; it was measured in another checkpointing mode, and the mode plays no part here"
    options = " and ".join(matching.settling(match, hints)) if match.where else ""
    return f"nothing excludes it; add {options} to decide it" if options else "nothing excludes it"
