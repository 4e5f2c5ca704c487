"""Which cells are run: the default matrix, as far as it was asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from faultline.base.errors import UsageError, unknown
from faultline.base.text import listing, matches
from faultline.catalogue import Failure
from faultline.catalogue.loading import name_of_id
from faultline.cells.cell import AXES, DEVICES, Cell, every_cell, split_values, values, within
from faultline.cells.rules import every_rule, not_by_default, possible_cells
from faultline.strategies import ROWS, ROWS_VARIABLE, naming


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
    life: tuple[str, ...] = ()
    device: str = "cpu"
    cells: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, world: str = "", device: str = "", cell: str = "", **axes: str) -> Selection:
        """The selection of options, each with commas between its values; whole cells leave nothing to narrow."""
        others = [f"--{axis}" for axis, value in {**axes, "world": world, "device": device}.items() if value]
        if cell and others:
            raise UsageError(f"--cell names whole cells, with their device: leave out {' and '.join(others)}")
        try:
            worlds = tuple(int(size) for size in split_values(world))
        except ValueError:
            raise UsageError(f"--world takes numbers, not {world!r}") from None
        named = {axis: split_values(value) for axis, value in axes.items()}
        named["failure"] = tuple(map(name_of_id, named.get("failure", ())))
        return cls(**named, world_size=worlds, device=device or "cpu", cells=split_values(cell))


def select(failures: Mapping[str, Failure], selection: Selection) -> list[Cell]:
    """The cells to run: the default matrix narrowed, or widened where an axis is named."""
    check(failures, selection)
    if selection.cells:
        return _cells_with_ids(failures, selection.cells)
    named = tuple(axis for axis in AXES[1:-1] if getattr(selection, axis))
    return [
        cell
        for failure in _failures_of(failures, selection).values()
        for cell in _left_in(failure, selection.device, named)
        if within(cell, selection, named)
    ]


@functools.cache
def _left_in(failure: Failure, device: str, named: tuple[str, ...]) -> tuple[Cell, ...]:
    """A failure's cells that no rule leaves out, where these axes are named."""
    rules = [rule for rule in not_by_default() if not {*rule.lifted_by} & {*named}]
    rules.reverse()  # the last ones leave most out, so the others are seldom asked
    every = possible_cells(failure, device)
    return tuple(cell for cell, variant in every if not any(rule.leaves_out(cell, variant) for rule in rules))


def left_out(failures: Mapping[str, Failure], selection: Selection) -> Iterator[tuple[Cell, str]]:
    """Each combination that the default matrix lacks and every named axis holds, with the first rule against it."""
    check(failures, selection)
    for cell, variant in every_cell(_failures_of(failures, selection), selection.device):
        if not _is_asked(cell, selection):
            continue
        reason = next((rule.reason for rule in every_rule() if rule.leaves_out(cell, variant)), "")
        if reason:
            yield cell, reason


def _cells_with_ids(failures: Mapping[str, Failure], ids: Iterable[str]) -> list[Cell]:
    """The cells with these ids; refuses one that can't exist, with the nearest that can."""
    cells = [*dict.fromkeys(map(Cell.parse, ids))]
    asked = Selection(failure=tuple(cell.failure for cell in cells))
    check(failures, asked)
    whole = _failures_of(failures, asked)
    every = (possible_cells(failure, device) for device in DEVICES for failure in whole.values())
    there = dict.fromkeys(cell for cells in every for cell, _ in cells)
    for cell in cells:
        if cell not in there:
            if cell.device not in DEVICES:
                raise unknown("device", cell.device, DEVICES)
            beside = [other.id for other in there if (other.failure, other.device) == (cell.failure, cell.device)]
            raise unknown("cell", cell.id, beside)
    return cells


def _failures_of(failures: Mapping[str, Failure], selection: Selection) -> dict[str, Failure]:
    return {name: failure for name, failure in failures.items() if matches(name, selection.failure or ("*",))}


def _is_asked(cell: Cell, selection: Selection) -> bool:
    """Whether every axis that was named holds the cell."""
    return (not selection.cells or cell.id in selection.cells) and within(cell, selection, AXES[:-1])


def check(failures: Mapping[str, Failure], selection: Selection) -> None:
    """Refuse names that match nothing, with the nearest ones."""
    if not {"fp16", "float16", "half"}.isdisjoint(selection.precision):
        raise UsageError("fp16 was not measured: --precision takes fp32 or bf16")
    known = {"failure": [*failures], **values(_failures_of(failures, selection).values())}
    aliases = {"strategy": naming.aliases(), "precision": {"float32": "fp32", "bfloat16": "bf16"}}
    for axis in ("failure", "variant", "strategy", "checkpointing", "precision", "life"):
        for pattern in getattr(selection, axis):
            if not any(matches(name, (pattern,)) for name in known[axis]):
                raise unknown(axis, pattern, known[axis], aliases.get(axis, {}))
    for world in selection.world_size:
        if world not in known["world_size"]:
            sizes = listing([*map(str, known["world_size"])], "or")
            more = f"; with {ROWS_VARIABLE}=8 also over 8" if world == 8 else ""
            raise UsageError(f"world size {world}: the global batch of {ROWS} rows divides over {sizes} ranks{more}")
    if selection.device not in known["device"]:
        raise unknown("device", selection.device, known["device"], {"gpu": "cuda", "nvidia": "cuda"})
