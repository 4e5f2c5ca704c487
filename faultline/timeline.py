"""What cells did month after month: the same cells on the whole ecosystem as of each date, and the data of it."""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline import stacks
from faultline.campaigns import Campaign, Measured, measure
from faultline.catalogue import ROOT
from faultline.errors import UsageError
from faultline.matrix import Cell
from faultline.results import untagged
from faultline.stacks import TODAY

COMMITTED = ROOT / "timeline" / "timeline.json"
UNINSTALLABLE = "uninstallable"
NOT_RUN = "-"


@dataclass(frozen=True)
class Moment:
    """A stack on the line of time: `date` is ``YYYY-MM-DD``, or ``today`` for what is installed here.

    `unusable` says why nothing could be run on it.
    """

    date: str
    versions: Mapping[str, str]
    unusable: str = ""


@dataclass(frozen=True)
class Timeline:
    """The outcome of each cell at each moment: ``raises no-grad-fn``, in the order of the moments."""

    moments: Sequence[Moment]
    cells: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Row:
    """One variant of a failure: at each moment, how many of its cells had which outcome."""

    failure: str
    variant: str
    points: Sequence[Counter[str]]


def months(first: datetime.date, last: datetime.date) -> Iterator[datetime.date]:
    """The first day of each month from one date to another."""
    day = first.replace(day=1)
    while day <= last:
        if day >= first:
            yield day
        day = (day + datetime.timedelta(days=31)).replace(day=1)


def run(campaign: Campaign, dates: Sequence[str], cells: Sequence[Cell]) -> Timeline:
    """Run cells on the stack of each date; what the campaign has already is not run again."""
    return gather([measure(campaign, date, stacks.parse(date), cells) for date in dates], [cell.id for cell in cells])


def gather(measured: Sequence[Measured], cells: Sequence[str]) -> Timeline:
    """The timeline of stacks in their order; a cell that a stack has no result of is `uninstallable` there."""
    outcomes = [each.outcomes for each in measured]
    return Timeline(
        [Moment(each.name, untagged(each.versions), each.unusable) for each in measured],
        {cell: [" ".join(told.get(cell, (UNINSTALLABLE,))).strip() for told in outcomes] for cell in cells},
    )


def rows(timeline: Timeline) -> list[Row]:
    """A row for each failure and variant, its cells of all strategies and checkpointing modes put together."""
    found: dict[tuple[str, str], list[Counter[str]]] = {}
    for name, outcomes in timeline.cells.items():
        cell = Cell.parse(name)
        points = found.setdefault((cell.failure, cell.variant), [Counter() for _ in timeline.moments])
        for point, outcome in zip(points, outcomes, strict=True):
            point[outcome.split()[0]] += 1
    return [Row(failure, variant, points) for (failure, variant), points in found.items()]


def changes(timeline: Timeline, cell: str) -> list[tuple[str, str]]:
    """When a cell's outcome changed, and to what: the first moment, then each that differs from the one before."""
    told: list[tuple[str, str]] = []
    for moment, outcome in zip(timeline.moments, timeline.cells[cell], strict=True):
        if outcome != UNINSTALLABLE and (not told or told[-1][1] != outcome):
            told.append((moment.date, outcome))
    return told


def write(file: Path, timeline: Timeline) -> None:
    """Write a timeline as JSON: a line for each moment and each cell, so that a change shows where it is."""

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    moments = ",\n".join(f"  {line(vars(moment))}" for moment in timeline.moments)
    cells = ",\n".join(f"  {line(cell)}: {line(list(outcomes))}" for cell, outcomes in timeline.cells.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(f'{{"moments": [\n{moments}\n],\n"cells": {{\n{cells}\n}}}}\n', encoding="utf-8")
    partial.replace(file)


def read(file: Path) -> Timeline:
    """Read a timeline; raises UsageError for any other file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        moments = [Moment(**moment) for moment in content["moments"]]
        timeline = Timeline(moments, content["cells"])
        if any(len(outcomes) != len(moments) for outcomes in timeline.cells.values()):
            raise ValueError("a cell lacks an outcome")
        if not all(isinstance(each, str) and each.split() for outcomes in timeline.cells.values() for each in outcomes):
            raise ValueError("an outcome is no word")
        if not all(isinstance(moment.versions, dict) and isinstance(moment.date, str) for moment in moments):
            raise ValueError("a moment lacks its date or versions")
        for cell in timeline.cells:
            Cell.parse(cell)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
        raise UsageError(f"{file} is not a timeline: {error}") from None
    return timeline


def when(moment: Moment) -> str:
    """A moment in a few characters: ``25-03``, or ``now``."""
    return "now" if moment.date == TODAY else moment.date[2:7]
