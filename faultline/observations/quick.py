"""One cell of each variant."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase

from faultline import strategies
from faultline.catalogue.loading import failures
from faultline.cells import claims
from faultline.cells.cell import Cell
from faultline.observations.measured import outcomes, shown_on, usual


def quick(cells: Collection[Cell]) -> list[Cell]:
    """One cell of each variant among these: where its failure shows as it was reported, if there is such a place."""

    asked = [failures()[name] for name in {cell.failure for cell in cells}]
    shows = {cell for failure in asked for cell in claims.showing(failure, outcomes(failure, shown_on(failure)))}
    places = {(cell.failure, cell.strategy, cell.checkpointing) for cell in shows}

    def fitting(cell: Cell) -> tuple[bool, ...]:
        failure = failures()[cell.failure]
        shown = cell in shows if cell.broken else (cell.failure, cell.strategy, cell.checkpointing) in places
        reported = failure.reported and failure.reported.strategy
        _, _, named = failure.report.partition("/")
        in_report = fnmatchcase(cell.name.partition("/")[2], named or "*")
        distributed = strategies.distributed(cell.strategy)
        best = (shown, distributed, cell.strategy == reported, in_report, cell == usual(cell))
        return tuple(not each for each in best)

    chosen: dict[tuple[str, str], Cell] = {}
    for cell in sorted(cells, key=fitting):
        chosen.setdefault((cell.failure, cell.variant), cell)
    return [cell for cell in cells if chosen[cell.failure, cell.variant] == cell]
