"""Which failures of the catalogue a training project has, by what its files say; nothing of it is run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from faultline import advisories, conditions, history, known, report, samples, setups, stacks, strategies
from faultline.catalogue import NEEDS, Failure, Turn
from faultline.conditions import Case, Finding
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.known import Fate
from faultline.matrix import CHECKPOINTING, PRECISIONS, Cell
from faultline.ranges import Range
from faultline.report import audit
from faultline.server import STACK
from faultline.setups import Setup
from faultline.stacks import TODAY

MECHANISM = "the bare mechanism today"
WITH = "these cells with "


@dataclass(frozen=True)
class Evidence:
    """What stands behind a case: cells that show it today, of how many; and on how many of the timeline's stacks,
    the last of them as of `last`; and which stacks of stacks/ showed it.

    `remedies` are those that cells of the case tested, as `measured` says: today; or if these don't show it any more,
    the bare mechanism's in the same places; or if that doesn't either, on the stack that the failure was reported on.
    Where the project has a release with which the rules say otherwise, they are what these say.
    """

    today: int
    of: int
    stacks: int
    of_stacks: int
    last: str
    pinned: tuple[str, ...]
    outcomes: tuple[str, ...]
    remedies: tuple[Fate, ...]
    measured: str
    upgrade: tuple[str, ...]
    commands: tuple[str, ...]


def command(args: argparse.Namespace) -> int:
    """Audit a project: exit code 1 where a failure of the catalogue applies, 0 where none does or one only could."""
    if args.advisories:
        if args.files or args.env or args.python or args.json:
            raise UsageError("--advisories writes what is known of every failure: it goes without anything else")
        return advisories.command()
    setup = setups.of(args.files, args.env, args.python)
    found = conditions.findings(setup)
    if args.json:
        print(json.dumps(as_json(setup, found), indent=2))
    else:
        audit.show(Console(), setup, found, args.all)
    return EXIT_UNEXPECTED if any(finding.applies for finding in found) else EXIT_AS_EXPECTED


def evidence(failure: Failure, case: Case, versions: Mapping[str, Range]) -> Evidence:
    """What was measured of a case; of remedies, with the one release that a package has, where it does otherwise."""
    told = known.outcomes(failure)
    today = [cell for cell in case.shown if samples.shows(failure, cell, told[cell])]
    past = [sample for cell in case.shown for sample in samples.of(failure, cell)]
    dates = {sample.stack for sample in past} & {moment.date for moment in known.over_time().moments} - {TODAY}
    showed = {sample.stack for sample in past if sample.shows}
    did = showed & dates
    seen = {told[cell] for cell in today} or {sample.told for sample in past if sample.shows and sample.told[0]}
    twins = [cell for cell in dict.fromkeys(map(_plain, today)) if samples.shows(failure, cell, told[cell])]
    mechanism = [] if twins else _mechanism(failure, case.shown)
    measured = "these cells today" if twins else MECHANISM if mechanism else f"these cells on {known.shown_on(failure)}"
    tested = twins or mechanism or case.shown
    remedies = known.remedies(failure, tested)
    own, theirs = known.theirs(failure, {name: str(left.low) for name, left in versions.items() if left.pinned})
    there = known.remedies(failure, tested, theirs) if own else []
    if there and {(fate.key, fate.word) for fate in there} != {(fate.key, fate.word) for fate in remedies}:
        measured, remedies = WITH + ", ".join(f"{name} {own[name]}" for name in sorted(own)), there
    return Evidence(
        len(today),
        len(case.among),
        len(did),
        len(dates),
        max(did, default=""),
        tuple(sorted(showed & {*stacks.named()} - {TODAY})),
        tuple(sorted(report.named(*each) for each in seen)),
        tuple(remedies),
        measured,
        tuple(dict.fromkeys(_upgrade(fix) for cell in case.shown if (fix := history.fixed(failure, cell)))),
        commands(failure, case),
    )


def _upgrade(fix: Turn) -> str:
    return f"{fix.package} {fix.version} or newer"


def _plain(cell: Cell) -> Cell:
    return replace(cell, precision="fp32")


def _mechanism(failure: Failure, cells: Collection[Cell]) -> list[Cell]:
    """The bare mechanism's cells in the places of others, which show today what these showed before a fix."""
    places = {(cell.strategy, cell.checkpointing) for cell in cells}
    told = known.outcomes(failure)
    return [
        cell
        for cell in told
        if cell.variant == "broken"
        and (cell.strategy, cell.checkpointing) in places
        and samples.shows(failure, cell, told[cell])
    ]


def commands(failure: Failure, case: Case) -> tuple[str, ...]:
    """What repeats one cell of a case, on the last stack that showed it, and the failure as it was reported."""
    told = known.outcomes(failure)
    usual = sorted(case.shown, key=lambda cell: (cell.precision != "fp32", case.shown.index(cell)))
    now = next((cell for cell in usual if samples.shows(failure, cell, told[cell])), None)
    own = [report.command(now.id)] if now else []
    for cell in usual if not now else ():
        showed = [sample for sample in samples.of(failure, cell) if sample.shows and sample.stack]
        if showed:
            stack = showed[-1].stack
            own = [report.command((cell if stack in stacks.named() else _plain(cell)).id, stack)]
            break
    return (*own, *([f"make reproduce FAILURE={failure.name}"] if failure.reported else []))


def as_json(setup: Setup, found: Collection[Finding]) -> dict[str, Any]:
    """The answer for machines; README.md has the table of its keys."""
    axes = {"strategy": strategies.names(), "checkpointing": CHECKPOINTING, "precision": PRECISIONS}
    return {
        "read": list(setup.read),
        "known": {
            key: {"values": report.ordered(values, axes.get(key, ())), "from": list(setup.sources[key])}
            for key, values in setup.left.items()
        },
        "versions": {name: {"range": r.text, "from": list(setup.sources[name])} for name, r in setup.versions.items()},
        "unknown": unknown(setup),
        "notes": list(setup.notes),
        "findings": [_finding(setup, finding) for finding in found],
    }


def unknown(setup: Setup) -> list[str]:
    """What the files say nothing of and failures depend on, in a stable order."""
    axes = ("strategy", "checkpointing", "precision", "trainer", *NEEDS)
    absent = [name for name in STACK if name not in setup.versions]
    return [axis for axis in axes if axis not in setup.left] + absent


def _finding(setup: Setup, finding: Finding) -> dict[str, Any]:
    failure = finding.failure
    return {
        "failure": failure.name,
        "title": failure.title,
        "sure": finding.sure,
        "applies": finding.applies,
        "cases": [_case(setup, failure, case) for case in finding.cases],
        "fixed": failure.until,
        "records": list(failure.records),
    }


def _case(setup: Setup, failure: Failure, case: Case) -> dict[str, Any]:
    shown = evidence(failure, case, setup.versions)
    return {
        "variants": [variant.name for variant in case.variants],
        "holds": {condition: list(setup.sources.get(condition, ())) for condition in case.holds},
        "if": [conditions.words(case, condition) for condition in case.open],
        "outcomes": list(shown.outcomes),
        "today": {"cells": shown.today, "of": shown.of},
        "stacks": {"shown": shown.stacks, "of": shown.of_stacks, "last": shown.last, "pinned": list(shown.pinned)},
        "upgrade": list(shown.upgrade),
        "measured": shown.measured,
        "remedies": [known.as_json(fate) for fate in shown.remedies],
        "repeat": list(shown.commands),
    }
