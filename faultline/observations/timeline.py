"""What cells did month after month: the same cells on the whole ecosystem as of each date."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from faultline.base.errors import UsageError
from faultline.base.packages import TODAY
from faultline.cells.cell import Cell
from faultline.observations import measured, store
from faultline.observations.store import Stack

UNINSTALLABLE = "uninstallable"


@dataclass(frozen=True)
class Timeline:
    """What each cell did on each month's stack: ``raises no-grad-fn``, in the order of the stacks."""

    stacks: Sequence[Stack]
    cells: Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Series:
    """One variant of a failure: for each stack, how many of its cells had which outcome."""

    failure: str
    variant: str
    points: Sequence[Counter[str]]


def committed() -> Timeline:
    """The timeline of the recorded observations."""
    cells = {
        cell.id: [row.words if row else UNINSTALLABLE for row in rows]
        for failure in store.failure_names()
        for cell, rows in measured.monthly(failure).items()
    }
    return Timeline(measured.months(), cells)


def series(timeline: Timeline) -> list[Series]:
    """A series for each failure and variant, its cells of all strategies and checkpointing modes put together."""
    by_variant: dict[tuple[str, str], list[Counter[str]]] = {}
    for name, outcomes in timeline.cells.items():
        cell = Cell.parse(name)
        points = by_variant.setdefault((cell.failure, cell.variant), [Counter() for _ in timeline.stacks])
        for point, outcome in zip(points, outcomes, strict=True):
            point[outcome.split()[0]] += 1
    return [Series(failure, variant, points) for (failure, variant), points in by_variant.items()]


def write(file: Path, timeline: Timeline) -> None:
    partial = file.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(timeline)))
    partial.replace(file)


def read(file: Path) -> Timeline:
    """Read a timeline; raises UsageError for any other file."""
    try:
        timeline = msgspec.json.decode(file.read_bytes(), type=Timeline)
        if any(len(outcomes) != len(timeline.stacks) for outcomes in timeline.cells.values()):
            raise ValueError("a cell lacks an outcome")
        if not all(each.split() for outcomes in timeline.cells.values() for each in outcomes):
            raise ValueError("an outcome is no word")
        for cell in timeline.cells:
            Cell.parse(cell)
    except (OSError, ValueError, msgspec.DecodeError, UsageError) as error:
        raise UsageError(f"{file} is not a timeline: {error}") from None
    return timeline


def when(stack: Stack) -> str:
    """A month in a few characters: ``25-03``, or ``now``."""
    return "now" if stack.month == TODAY else stack.month[2:7]
