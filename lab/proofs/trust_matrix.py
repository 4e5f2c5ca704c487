"""The proof of the matrix's oracle: cells that train as they are, and with every fault that can be seeded into them."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.cells.selection import Selection, select
from faultline.observations import measured
from faultline.runs import runner
from faultline.runs.results import Result
from faultline.runs.runner import References, RunCell
from faultline.runs.supervisor import RankServer
from lab.proofs import planting
from lab.proofs.planting import Planted
from lab.proofs.trust_judgement import FALSE_ALARM, FAULT_OF_OURS, MISNAMED, MISSED, RIGHT, Proof

KIND = "oracle"
HEALTHY = 1000


def proof(healthy: int | None, faulty: int | None, seed: int) -> Proof:
    """So many cells of the matrix that are known to train, and so many seeded faults, or all of them."""
    choose = random.Random(seed)
    known = training()
    cells = choose.sample(known, min(HEALTHY if healthy is None else healthy, len(known)))
    faults = [*planting.planted()]
    if faulty is not None:
        faults = choose.sample(faults, min(faulty, len(faults)))
    named = {marked(each): each for each in faults}
    mixed = [*cells, *named]
    choose.shuffle(mixed)  # what an interruption leaves is of both kinds
    return Proof(
        KIND,
        mixed,
        lambda folder: run(folder, named),
        lambda entry: worth(named.get(entry.cell), entry),
        lambda entry: "",
        named.__contains__,
        lambda cell: [f"fault: {named[cell].fault}"] if cell in named else [],
    )


def training() -> list[Cell]:
    """The cells of the whole matrix that are known to train with today's stack."""
    known, pins = failures(), measured.pinned()
    return [
        cell
        for cell in select(known, Selection())
        if expected.expect(expected.rules(known[cell.failure]), cell, pins).outcome == Outcome.TRAINS
    ]


def marked(each: Planted) -> Cell:
    """The cell of a fault under a name of its own, as results are stored by."""
    return replace(each.cell, failure=f"{each.cell.failure}+{each.fault}")


def run(folder: Path, named: Mapping[Cell, Planted]) -> RunCell:
    """What runs a cell, with its fault if it has one; its verdict says whether it was judged rightly."""

    def go(server: RankServer, references: References, cell: Cell) -> Result:
        each = named.get(cell)
        inject = planting.FAULTS[each.fault].injection if each else ""
        entry = runner.run_cell(server, references, each.cell if each else cell, inject)
        return with_worth(each, replace(entry, cell=cell))

    return go


def with_worth(each: Planted | None, entry: Result) -> Result:
    """A result that says whether it was judged rightly, and with a fault, what was to be expected."""
    if worth(each, entry) != RIGHT:
        return replace(entry, verdict="unexpected failure")
    return replace(entry, verdict="expected", expected=Expectation(entry.outcome) if each else entry.expected)


def worth(each: Planted | None, entry: Result) -> str:
    """What the judgement of a cell is worth."""
    if entry.out_of_time:
        return FAULT_OF_OURS
    if each and each.named.fits(entry):
        return RIGHT
    if entry.outcome == Outcome.INVALID:
        return FAULT_OF_OURS
    if entry.outcome == Outcome.TRAINS:
        return MISSED if each else RIGHT
    return MISNAMED if each else FALSE_ALARM
