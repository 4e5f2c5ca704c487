"""From a log to the failure that hit it, how sure that is, and what was measured to help."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from faultline import clues, known, logs, nearby, stacks, strategies, tracebacks
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError, unknown
from faultline.events import Event, Found
from faultline.hints import SET, TELLING, Collector, Hints
from faultline.logs import Line
from faultline.matching import Match, commands, fitting, happens, sharing, worded
from faultline.matrix import CHECKPOINTING, listed, matches
from faultline.report import diagnosis, plain
from faultline.silence import LOGGED, Silence, Steps, Warned, Warnings, alike, warnings
from faultline.wording import searchable

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Diagnosis:
    """The answer to a log: the best match if there is one, the first cause, and what else was found."""

    match: Match | None
    either: tuple[Match, ...]
    """The failures of the match's mechanism that fit as well, where no more than that is known."""
    alike: tuple[Match, ...]
    cause: Event | None
    found: Found
    hints: Hints
    silence: Silence | None = None
    """Steps without a gradient, where the log tells no error."""
    warned: tuple[Warned, ...] = ()
    """Warnings that failures print, where the log tells no error."""
    empty: bool = False

    @property
    def answer(self) -> str:
        return self.match.failure.name if self.match else UNKNOWN

    @property
    def search(self) -> str:
        """The words of the first cause that don't differ from run to run: what to look for elsewhere."""
        return searchable(known.beginning(self.cause.headline)) if self.cause else ""


class Intake:
    """What reads a log's lines, and which it asks for."""

    def __init__(self) -> None:
        self.reader, self.collector, self.steps, self.empty = tracebacks.Reader(), Collector(), Steps(), True
        self.warnings = Warnings()

    def wanted(self) -> re.Pattern[bytes] | None:
        """The pattern of lines that can still change the answer; none while a traceback is open."""
        self.empty = False
        if self.reader.busy:
            return None
        reader = self.reader
        errors = b"" if reader.full else clues.TRACEBACKS if reader.tired else clues.TELLING
        losses, waited = reader.waits and not reader.full, not self.warnings.full
        return _pattern(errors, not self.collector.full, losses, not self.steps.full, waited)

    def take(self, line: Line) -> None:
        if self.reader.stale(line):
            return
        self.reader.take(line)
        self.collector.take(line)
        self.steps.take(line)
        self.warnings.take(line)


@functools.cache
def _pattern(errors: bytes, hints: bool, losses: bool, steps: bool, warned: bool) -> re.Pattern[bytes]:
    parts = errors, TELLING.encode() * hints, clues.LOSS * losses, LOGGED * steps, warnings() * warned
    return re.compile(b"|".join(filter(None, parts)) or rb"(?!)")


def diagnose(files: Callable[[logs.Wanted], Iterable[Line]], asked: Hints | None = None) -> Diagnosis:
    """Read a log to its end and answer; what `asked` names outranks what the log tells.

    `files` gives the lines, at least those that the function that it is handed wants.
    """
    intake = Intake()
    for line in files(intake.wanted):
        intake.take(line)
    reader, collector = intake.reader, intake.collector
    found = reader.found()
    cause = found.cause()
    chain = found.chain(cause) if cause else []
    hints = collector.hints("\n".join(f"{event.frames}\n{event.text}" for event in chain))
    if asked:
        hints = replace(
            hints,
            strategies=asked.strategies or hints.strategies,
            modes=asked.modes or hints.modes,
            versions={**hints.versions, **asked.versions},
            asked="\n".join(sorted({*asked.strategies, *(SET[mode] for mode in asked.modes & SET.keys())})),
        )
    # Of errors that were raised while each other was handled the last may be the one with a name: it knows the most.
    told = [(event, match) for event in reversed(chain) if not event.follows for match in fitting(event.text, hints)]
    cause, best = next(((event, match) for event, match in told if match.sure), (cause, None))
    silence = None if cause else intake.steps.silence()
    warned = () if cause else intake.warnings.warned(hints)
    others = {match.failure.name: match for _, match in told if not match.sure}
    either = sharing(best, (match for _, match in told)) if best else ()
    return Diagnosis(best, either, tuple(others.values()), cause, found, hints, silence, warned, intake.empty)


def command(args: argparse.Namespace) -> int:
    """Answer a log: exit code 0 if its failure is known, 1 if not."""
    asked = options(args)
    binary: list[str] = []
    told = diagnose(lambda wanted: logs.read(args.logs, wanted, binary), asked)
    if told.empty:
        raise UsageError("there is nothing in that: give a log file, several, or - for standard input")
    for name in binary if not told.cause else ():
        raise UsageError(f"{plain(name)} is not text; unpack it, if it is packed with anything but gzip")
    if args.json:
        print(json.dumps(as_json(told), indent=2))
    else:
        diagnosis.show(Console(), told)
    return EXIT_AS_EXPECTED if told.match else EXIT_UNEXPECTED


def options(args: argparse.Namespace) -> Hints:
    """What the options name of the run; raises UsageError for names that there are not."""
    for axis, given, names in (
        ("strategy", args.strategy, strategies.names()),
        ("checkpointing", args.checkpointing, list(CHECKPOINTING)),
    ):
        for pattern in filter(None, given.split(",")):
            if not any(matches(name, (pattern.strip(),)) for name in names):
                raise unknown(axis, pattern, names)
    wanted, modes = listed(args.strategy), listed(args.checkpointing)
    return Hints(
        frozenset(name for name in strategies.names() if matches(name, wanted)),
        frozenset(mode for mode in CHECKPOINTING if matches(mode, modes)),
        _versions(args.stack),
    )


def _versions(stack: str) -> dict[str, str]:
    """The versions that a stack names: a file of stacks/, a month of the timeline, or requirements with ==."""
    if not stack:
        return {}
    dated = {moment.date: moment.versions for moment in known.over_time().moments}
    if stack in dated:
        return dict(dated[stack])
    asked = stacks.parse(stack)
    if asked.asof and len(asked.requirements) == len(stacks.NEEDED) and stack not in stacks.named():
        raise UsageError(f"nothing was measured as of {stack}; there is {', '.join(dated)}")
    words = asked.requirements if not asked.here else [f"{name}=={version}" for name, version in known.pinned().items()]
    pins = {pin[1]: pin[2] for word in words if (pin := re.fullmatch(r"([\w.-]+)==([\w.+!]+)", word))}
    if not pins:
        raise UsageError(f"{stack!r} names no version; write trl==0.15.2 and such")
    return pins


def as_json(told: Diagnosis) -> dict[str, Any]:
    """The answer for machines; README.md has the table of its keys."""
    match, hints = told.match, told.hints
    failure = match.failure if match else None
    fates, scope = known.fates(failure, match.signature, match.where, hints.versions) if match and failure else ([], "")
    return {
        "answer": told.answer,
        "sure": match.sure if match else "",
        "signature": match.signature if match else "",
        "title": failure.title if failure else "",
        "mechanism": match.mechanism if match else "",
        "either": [
            {"failure": m.failure.name, "told_by": m.told_by} for m in (match, *told.either) if m and told.either
        ],
        "error": told.cause.text if told.cause else "",
        "search": told.search,
        "cause": _event(told.cause) if told.cause else None,
        "followed": [_event(event) for event in told.found.events if event is not told.cause],
        "silence": vars(told.silence) | {"failures": alike(told.silence, hints)} if told.silence else None,
        "warned": [vars(warned) for warned in told.warned],
        "alike": [{"failure": m.failure.name, "signature": m.signature, "against": m.against} for m in told.alike],
        "seen": [{"cell": cell, "stack": on} for cell, on in known.seen(told.cause.text)] if told.cause else [],
        "strategies": sorted(hints.strategies, key=strategies.names().index),
        "checkpointing": sorted(hints.modes, key=CHECKPOINTING.index),
        "versions": hints.versions,
        "claims": [known.as_json(fate) for fate in worded(fates, match.mechanism if match else "")],
        "measured": scope,
        "happens": happens(match) if match else [],
        "then": then(told),
        "fixed": failure.until if failure else "",
        "reproduce": commands(match) if match else [],
        "records": list(failure.records) if failure else [],
    }


def _event(event: Event) -> dict[str, Any]:
    return {
        "kind": event.kind,
        "error": event.text,
        "file": event.file,
        "line": event.number,
        "named_in_line": event.last,
        "rank": event.rank,
        "follows": event.follows,
    }


def then(told: Diagnosis) -> dict[str, Any]:
    """What was measured on the stack nearest to the versions that are known of the run; empty where none is near."""
    near = nearby.nearest(told.match.failure, told.hints.versions) if told.match else None
    if not told.match or not near:
        return {}
    moment, did = near
    return {"date": moment.date, "versions": dict(moment.versions), "outcomes": nearby.then(did, told.match.where)}
