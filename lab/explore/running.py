"""How the cell of a case runs: as the check of somebody's own model does."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from faultline.base.errors import TargetFailed
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.check import cell as checking
from faultline.check.target import parse
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer
from lab.explore.case import Case
from lab.programs import files


@dataclass(frozen=True)
class Runner:
    """Runs cells of cases that it knows."""

    cases: dict[Cell, Case] = field(default_factory=dict)

    def add(self, case: Case) -> Cell:
        """Know a case; gives its cell."""
        cell = case.cell
        self.cases[cell] = case
        return cell

    def __call__(self, server: RankServer, references: References, cell: Cell) -> Result:
        """One cell's result. What one process can't train is impossible: there is nothing to hold it against."""
        folder = Path(server.folder) / "programs"
        folder.mkdir(exist_ok=True)
        case = self.cases[cell]
        file = files.write(folder, case.program)
        inject = case.fault.injection if case.fault else ""
        target = replace(parse(f"{file}:build", ""), trainer=case.program.trainer, sketched=True)
        try:
            return checking.run(target, server, references, cell, inject)
        except TargetFailed as failed:
            return checking.without_reference(cell, failed, Outcome.IMPOSSIBLE, server)
