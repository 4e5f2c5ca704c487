"""The timeline of cells: run them on monthly stacks, and show what was measured."""

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.base.console import write_line
from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.packages import TODAY, untagged
from faultline.base.text import one_line
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.observations import recording, store
from faultline.observations.recording import UNINSTALLABLE, Timeline
from faultline.observations.store import MeasuredStack
from faultline.report.run import ABSENT, SYMBOLS
from faultline.report.terminal import STYLES, columns, legend
from faultline.runs import campaigns, engines
from faultline.runs.campaigns import Measured
from faultline.runs.engines import LOCAL, Engine
from faultline.stacks import requests


@dataclass(frozen=True)
class TimelineRequest:
    """Cells to run on each month's stack between two dates; `write` makes the result a part of the committed timeline.

    `fresh` takes no cached results.
    """

    selection: Selection
    since: str = ""
    until: str = ""
    workers: int = 1
    resume: bool = False
    write: bool = False
    fresh: bool = False
    engine: Engine = LOCAL


def run(request: TimelineRequest) -> int:
    """Run cells on the ecosystem as of the first of each month and on today's stack; an interrupted run goes on."""
    cells = select(failures(), narrowed(request.selection))
    engines.check_cells(cells, request.engine)
    first = max(requests.day(request.since), requests.EARLIEST) if request.since else requests.EARLIEST
    last = requests.day(request.until) if request.until else datetime.date.today()
    if first > last:
        raise UsageError(f"--since {first} is after --until {last}")
    dates = [day.isoformat() for day in months(first, last)]
    dates += [] if request.until else [TODAY]
    if request.write:
        check_complete(recording.committed(), dates, cells)
    asked = {"cells": [cell.id for cell in cells], "since": request.since, "until": request.until}
    campaign = campaigns.begin("timeline", asked, request.workers, request.resume, request.fresh, request.engine)
    campaigns.announce(campaign, cells, len(dates))
    measured = campaigns.measure_each(campaign, {date: requests.parse(date) for date in dates}, cells)
    timeline = gather(measured, cells)
    folder = campaign.folder.path
    write(folder / "timeline.json", timeline)
    terminal(Console(), timeline)
    print(f"results: {campaign.folder.shown}/timeline.json")
    if request.write:
        check_stacks(recording.committed(), timeline)
        store.write(recording.with_timeline(store.everything(), timeline))
    return EXIT_AS_EXPECTED


def check_complete(before: Timeline, dates: Sequence[str], cells: Sequence[Cell]) -> None:
    """Raise UsageError if cells would have other months than the recorded ones: all need the same."""
    known = {stack.month for stack in before.stacks}
    if lost := known - {*dates}:
        raise UsageError(f"--write needs all months that are recorded, and {min(lost)} is not among these")
    others = sorted(cell.id for cell in before.cells.keys() - {*cells})
    if others and (new := {*dates} - known):
        raise UsageError(f"--write of a new month, {min(new)}, needs all cells that are recorded, such as {others[0]}")


def check_stacks(before: Timeline, after: Timeline) -> None:
    """Raise UsageError if what stays as it is recorded ran on other versions than what is new."""
    now = {stack.month: stack.versions for stack in after.stacks}
    moved = [stack.month for stack in before.stacks if stack.versions != now[stack.month]]
    others = sorted(cell.id for cell in before.cells.keys() - after.cells.keys())
    if moved and others:
        raise UsageError(
            f"nothing was written: the stack of {moved[0]} has other versions now, so --write needs all cells that are"
            f" recorded, such as {others[0]}"
        )


def narrowed(selection: Selection) -> Selection:
    """The broken variants at both levels under the usual strategies, unless the selection names others."""
    if selection.cells:
        return selection
    usual = tuple(name for name in strategies.usual_names() if strategies.distributed(name))
    return replace(
        selection,
        variant=selection.variant or ("*broken",),
        strategy=selection.strategy or usual,
        precision=selection.precision or ("fp32",),
        world_size=selection.world_size or (2,),
    )


def months(first: datetime.date, last: datetime.date) -> Iterator[datetime.date]:
    """The first day of each month from one date to another."""
    day = first.replace(day=1)
    while day <= last:
        if day >= first:
            yield day
        day = (day + datetime.timedelta(days=31)).replace(day=1)


def gather(measured: Sequence[Measured], cells: Sequence[Cell]) -> Timeline:
    """The timeline of stacks in their order; a cell that a stack has no result of is `uninstallable` there."""
    outcomes = [each.outcomes for each in measured]
    return Timeline(
        [MeasuredStack(each.name, untagged(each.versions), each.name, each.unusable) for each in measured],
        {cell: [did.get(cell.id, UNINSTALLABLE) for did in outcomes] for cell in cells},
    )


COLUMN = 8  # characters of a moment on the terminal


def write(file: Path, timeline: Timeline) -> None:
    """The timeline as JSON: what a cell did is a list, its outcome and its signature."""
    content = {"stacks": timeline.stacks, "cells": {cell.id: outcomes for cell, outcomes in timeline.cells.items()}}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def count_outcomes(timeline: Timeline) -> dict[tuple[str, str], list[Counter[str]]]:
    """By failure and variant: for each stack, how many of the cells, of all strategies and modes, had which outcome."""
    by_variant: dict[tuple[str, str], list[Counter[str]]] = {}
    for cell, outcomes in timeline.cells.items():
        counts = by_variant.setdefault((cell.failure, cell.variant), [Counter() for _ in timeline.stacks])
        for each, did in zip(counts, outcomes, strict=True):
            each[did.outcome] += 1
    return by_variant


def short_date(stack: MeasuredStack) -> str:
    """A month in a few characters: ``25-03``, or ``now``."""
    return "now" if stack.month == TODAY else stack.month[2:7]


def terminal(console: Console, timeline: Timeline) -> None:
    """A table for each failure; moments that don't fit the terminal's width are in further tables."""
    counts = count_outcomes(timeline)
    label = max((len(variant) for _, variant in counts), default=0)
    fit = max((console.width - label - 2) // COLUMN, 1)
    for failure, variants in groupby(counts, key=lambda row: row[0]):
        write_line(console, Text(one_line(failure), "bold"))
        rows = list(variants)
        for start in range(0, len(timeline.stacks), fit):
            part = slice(start, start + fit)
            table = columns("", *map(short_date, timeline.stacks[part]))
            for row in rows:
                marks = map(mark, counts[row][part])
                table.add_row(Text(one_line(row[1])), *(Text(text, STYLES.get(did, "dim")) for did, text in marks))
            console.print(table)
    legend(console, f"{ABSENT} {UNINSTALLABLE.outcome}")
    write_line(console, "A number: so many cells, of all strategies and modes, don't train.", "dim")


def mark(point: Counter[str]) -> tuple[str, str]:
    """The outcome that most cells have which don't train, and in few characters, how many they are."""
    if point[UNINSTALLABLE.outcome]:
        return UNINSTALLABLE.outcome, ABSENT
    bad = {outcome: n for outcome, n in point.items() if outcome not in ("trains", "impossible")}
    if bad:
        outcome = min(bad, key=lambda name: (-bad[name], name))
        return outcome, f"{SYMBOLS.get(outcome, '?')}{sum(bad.values())}"
    outcome = "trains" if point["trains"] else "impossible"
    return outcome, SYMBOLS[outcome]
