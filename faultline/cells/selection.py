"""Cells: one run of one variant in one place of the matrix, and which of them make sense."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from faultline import strategies
from faultline.base.errors import UsageError, unknown
from faultline.base.text import matches
from faultline.catalogue import Failure
from faultline.cells.cell import (
    AXES,
    CHECKPOINTING,
    DEVICES,
    PRECISIONS,
    WORLD_SIZES,
    Cell,
    default_world,
    every_cell,
    listed,
    within,
)
from faultline.cells.rules import Rule, every_rule, not_by_default, possible
from faultline.strategies import ROWS


@dataclass(frozen=True)
class Selection:
    """What was asked for; an empty axis takes the default matrix.

    Values may be patterns (``zero*``). `world_size` holds numbers, `cells` whole ids.
    """

    failure: tuple[str, ...] = ()
    variant: tuple[str, ...] = ()
    strategy: tuple[str, ...] = ()
    checkpointing: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    world_size: tuple[int, ...] = ()
    device: str = "cpu"
    cells: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, world: str = "", device: str = "", cell: str = "", **axes: str) -> Selection:
        """The selection of options, each with commas between its values; whole cells leave nothing to narrow."""
        others = [f"--{axis}" for axis, value in {**axes, "world": world, "device": device}.items() if value]
        if cell and others:
            raise UsageError(f"--cell names whole cells, with their device: leave out {' and '.join(others)}")
        try:
            worlds = tuple(int(size) for size in listed(world))
        except ValueError:
            raise UsageError(f"--world takes numbers, not {world!r}") from None
        named = {axis: listed(value) for axis, value in axes.items()}
        return cls(**named, world_size=worlds, device=device or "cpu", cells=listed(cell))


def select(failures: Mapping[str, Failure], selection: Selection) -> list[Cell]:
    """The cells to run: the default matrix narrowed, or widened where an axis is named."""
    check(failures, selection)
    if selection.cells:
        wanted = dict.fromkeys(map(Cell.parse, selection.cells))
        named = {name: failure for name, failure in failures.items() if name in {cell.failure for cell in wanted}}
        there = {cell for device in DEVICES for cell, variant in every_cell(named, device) if possible(cell, variant)}
        for cell in wanted:
            if cell not in there:
                known = [k for k, variant in every_cell(failures, selection.device) if possible(k, variant)]
                beside = [k.id for k in known if (k.failure, k.variant) == (cell.failure, cell.variant)]
                raise unknown(
                    "cell",
                    cell.id,
                    beside or sorted({k.id for k in known if k.strategy in strategies.listed_as("ONE_RANK")}),
                )
        return list(wanted)
    chosen = {name: failure for name, failure in failures.items() if matches(name, selection.failure or ("*",))}
    return [
        cell
        for cell, variant in every_cell(chosen, selection.device)
        if possible(cell, variant)
        and _asked(cell, selection)
        and not any(rule.leaves_out(_as_default(cell, selection), variant) for rule in _not_by_default(selection))
    ]


def left_out(failures: Mapping[str, Failure], selection: Selection) -> Iterator[tuple[Cell, str]]:
    """Each combination that the default matrix lacks and every named axis holds, with the first rule against it."""
    check(failures, selection)
    for cell, variant in every_cell(failures, selection.device):
        reason = next((rule.reason for rule in every_rule() if rule.leaves_out(cell, variant)), "")
        if reason and _asked(cell, selection):
            yield cell, reason


def _asked(cell: Cell, selection: Selection) -> bool:
    """Whether every axis that was named holds the cell."""
    return (not selection.cells or cell.id in selection.cells) and within(cell, selection, AXES[:-1])


def _not_by_default(selection: Selection) -> list[Rule]:
    """The default rules that hold for what was asked for: naming a mode brings it back for every variant."""
    return [rule for rule in not_by_default() if not (rule.lifted_by and getattr(selection, rule.lifted_by))]


def _as_default(cell: Cell, selection: Selection) -> Cell:
    """The cell as the default rules should see it: an axis that was named is no reason to leave it out."""
    if not selection.precision and not selection.world_size:
        return cell
    return replace(
        cell,
        precision="fp32" if selection.precision else cell.precision,
        world_size=default_world(cell) if selection.world_size else cell.world_size,
    )


def check(failures: Mapping[str, Failure], selection: Selection) -> None:
    """Refuse names that match nothing, with the nearest ones."""
    chosen = [f for f in failures.values() if matches(f.name, selection.failure or ("*",))]
    known = {
        "failure": list(failures),
        "variant": sorted({v.name for f in chosen for v in f.variants}),
        "strategy": strategies.names(),
        "checkpointing": list(CHECKPOINTING),
        "precision": list(PRECISIONS),
    }
    for axis, names in known.items():
        for pattern in getattr(selection, axis):
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise unknown(axis, pattern, names)
    for world in selection.world_size:
        if world not in WORLD_SIZES:
            raise UsageError(f"world size {world}: the global batch of {ROWS} rows divides over 1, 2 or 4 ranks")
    if selection.device not in DEVICES:
        raise unknown("device", selection.device, list(DEVICES))
