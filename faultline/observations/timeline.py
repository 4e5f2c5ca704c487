"""What cells did month after month: the same cells on the whole ecosystem as of each date."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from faultline.base.packages import TODAY
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.observations import measured, store
from faultline.observations.store import Stack

UNINSTALLABLE = Did("uninstallable")
"""Instead of an outcome, where nothing could be run on a stack."""


@dataclass(frozen=True)
class Timeline:
    """What each cell did on each month's stack, in the order of the stacks."""

    stacks: Sequence[Stack]
    cells: Mapping[Cell, Sequence[Did]]


@dataclass(frozen=True)
class Series:
    """One variant of a failure: for each stack, how many of its cells had which outcome."""

    failure: str
    variant: str
    points: Sequence[Counter[str]]


def committed() -> Timeline:
    """The timeline of the recorded observations."""
    cells = {
        cell: [row.did if row else UNINSTALLABLE for row in rows]
        for failure in store.failure_names()
        for cell, rows in measured.monthly(failure).items()
    }
    return Timeline(measured.months(), cells)


def series(timeline: Timeline) -> list[Series]:
    """A series for each failure and variant, its cells of all strategies and checkpointing modes put together."""
    by_variant: dict[tuple[str, str], list[Counter[str]]] = {}
    for cell, outcomes in timeline.cells.items():
        points = by_variant.setdefault((cell.failure, cell.variant), [Counter() for _ in timeline.stacks])
        for point, did in zip(points, outcomes, strict=True):
            point[did.outcome] += 1
    return [Series(failure, variant, points) for (failure, variant), points in by_variant.items()]


def write(file: Path, timeline: Timeline) -> None:
    """The timeline as JSON: what a cell did is a list, its outcome and its signature."""
    content = {"stacks": timeline.stacks, "cells": {cell.id: outcomes for cell, outcomes in timeline.cells.items()}}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(content)))


def when(stack: Stack) -> str:
    """A month in a few characters: ``25-03``, or ``now``."""
    return "now" if stack.month == TODAY else stack.month[2:7]
