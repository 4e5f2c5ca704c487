"""What all reports share: the words and symbols, tables of a run, and texts made safe to show."""

from collections.abc import Collection
from dataclasses import dataclass, field

from faultline import strategies
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell, default_world
from faultline.cells.words import in_order
from faultline.runs.results import Result

SYMBOLS = {
    "trains": "✓",
    "raises": "✗",
    "diverges": "≠",
    "misplaced": "⌂",
    "hangs": "∞",
    "crashes": "†",
    "impossible": "–",  # noqa: RUF001 - a dash, as in any table
    "invalid": "?",
}
ABSENT = "·"


@dataclass(frozen=True)
class TableRow:
    """One line of a failure's table; `extra` where it isn't fp32 at the default world size."""

    label: str
    extra: bool
    cells: dict[tuple[str, str], Result] = field(default_factory=dict)
    """Results by strategy and checkpointing mode."""


@dataclass(frozen=True)
class Table:
    """One failure's results: variants down, the strategies that are there across."""

    failure: str
    strategies: list[str]
    rows: list[TableRow]


def tables(results: Collection[Result]) -> list[Table]:
    """One table for each failure of a run, with every result in exactly one place."""
    made = []
    for name in sorted({result.cell.failure for result in results}):
        of_failure = [result for result in results if result.cell.failure == name]
        failure = failures().get(name)
        variants = in_order((r.cell.variant for r in of_failure), [v.name for v in failure.variants] if failure else [])
        devices = {result.cell.device for result in of_failure}
        rows: dict[tuple[bool, int, str], TableRow] = {}
        for result in of_failure:
            deviations = _deviations(result.cell, several_devices=len(devices) > 1)
            key = (bool(deviations), variants.index(result.cell.variant), deviations)
            row = rows.setdefault(key, TableRow(f"{result.cell.variant} {deviations}".strip(), bool(deviations)))
            row.cells[result.cell.strategy, result.cell.checkpointing] = result
        columns = in_order((result.cell.strategy for result in of_failure), strategies.names())
        made.append(Table(name, columns, [rows[key] for key in sorted(rows)]))
    return made


def _deviations(cell: Cell, several_devices: bool) -> str:
    """How a cell differs from the main table's: precision, world size, optional axes, device."""
    parts = [
        cell.precision if cell.precision != "fp32" else "",
        f"w{cell.world_size}" if cell.world_size != default_world(cell) else "",
        *cell.extras,
        cell.device if several_devices and cell.device != "cpu" else "",
    ]
    return " ".join(filter(None, parts))
