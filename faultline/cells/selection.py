"""Which cells are run: the default matrix, as far as it was asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from faultline.base.axes import AXES, DEVICES, NAMES
from faultline.base.errors import UsageError, unknown
from faultline.base.text import listing, matches
from faultline.catalogue import Failure
from faultline.catalogue.loading import name_of_id
from faultline.cells.cell import Cell, Conditions, every_cell, split_values, values, within
from faultline.cells.rules import every_rule, not_by_default, possible_cells, usual_values
from faultline.strategies import ROWS, ROWS_VARIABLE, naming


@dataclass(frozen=True, kw_only=True)
class Selection(Conditions):
    """What was asked for; an empty axis takes the default matrix.

    Values may be patterns (``zero*``). `world_size` holds numbers, `cells` whole ids.
    """

    failure: tuple[str, ...] = ()
    device: str = "cpu"
    cells: tuple[str, ...] = ()

    @classmethod
    def parse(cls, *, device: str = "", cell: str = "", **words: str) -> Selection:
        """The selection of options, each with commas between its values; whole cells leave nothing to narrow."""
        others = [f"--{word}" for word, value in {**words, "device": device}.items() if value]
        if cell and others:
            raise UsageError(f"--cell names whole cells, with their device: leave out {' and '.join(others)}")
        named: dict[str, Any] = {axis.name: split_values(words.get(axis.word, "")) for axis in AXES[:-1]}
        try:
            named["world_size"] = tuple(map(int, named["world_size"]))
        except ValueError:
            raise UsageError(f"--world takes numbers, not {words['world']!r}") from None
        named["failure"] = tuple(map(name_of_id, named["failure"]))
        return cls(**named, device=device or "cpu", cells=split_values(cell))


def select(failures: Mapping[str, Failure], selection: Selection) -> list[Cell]:
    """The cells to run: the default matrix narrowed, or widened where an axis is named."""
    check(failures, selection)
    if selection.cells:
        return _cells_with_ids(failures, selection.cells)
    named = tuple(name for name in NAMES[1:-1] if getattr(selection, name))
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
    every = possible_cells(failure, device, usual_values(failure, named))
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
    for cell in cells:
        failure = failures.get(cell.failure, Failure("", "", ""))
        if cell.device not in DEVICES:
            raise unknown("device", cell.device, DEVICES)
        here = {axis: [value] for axis, value in vars(cell).items()}
        if not any(other == cell for other, _ in possible_cells(failure, cell.device, here)):
            raise unknown("cell", cell.id, [other.id for other, _ in possible_cells(failure, cell.device)])
    return cells


def _failures_of(failures: Mapping[str, Failure], selection: Selection) -> dict[str, Failure]:
    return {name: failure for name, failure in failures.items() if matches(name, selection.failure or ("*",))}


def _is_asked(cell: Cell, selection: Selection) -> bool:
    """Whether every axis that was named holds the cell."""
    return (not selection.cells or cell.id in selection.cells) and within(cell, selection, NAMES[:-1])


def check(failures: Mapping[str, Failure], selection: Selection) -> None:
    """Refuse names that match nothing, with the nearest ones."""
    if not {"fp16", "float16", "half"}.isdisjoint(selection.precision):
        raise UsageError("fp16 was not measured: --precision takes fp32 or bf16")
    known = {"failure": [*failures], **values(_failures_of(failures, selection).values())}
    aliases = {axis.name: axis.aliases for axis in AXES} | {"strategy": naming.aliases()}
    for name in {*NAMES} - {"world_size", "device"}:
        for pattern in getattr(selection, name):
            if not any(matches(value, (pattern,)) for value in known[name]):
                raise unknown(name, pattern, known[name], aliases[name])
    for world in selection.world_size:
        if world not in known["world_size"]:
            sizes = listing([*map(str, known["world_size"])], "or")
            more = f"; with {ROWS_VARIABLE}=8 also over 8" if world == 8 else ""
            raise UsageError(f"world size {world}: the global batch of {ROWS} rows divides over {sizes} ranks{more}")
    if selection.device not in known["device"]:
        raise unknown("device", selection.device, known["device"], aliases["device"])
