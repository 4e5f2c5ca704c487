"""How the cell of a case runs: as the check of somebody's own model does."""

from dataclasses import dataclass, field
from pathlib import Path

from faultline.base.errors import TargetFailed
from faultline.base.text import one_line
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.check import cell as checking
from faultline.check.target import parse
from faultline.explore.case import Case
from faultline.programs import fault as faults
from faultline.programs import files
from faultline.programs import program as programs
from faultline.runs import results
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer


@dataclass(frozen=True)
class Runner:
    """Runs cells of programs that it knows, as JSON, with the fault that is planted in each, if there is one."""

    programs: dict[Cell, tuple[str, str]] = field(default_factory=dict)

    def add(self, case: Case) -> Cell:
        """Know a case's program; gives its cell."""
        cell = case.cell
        self.programs[cell] = case.program.to_json(), case.fault.to_json() if case.fault else ""
        return cell

    def __call__(self, server: RankServer, references: References, cell: Cell) -> Result:
        """One cell's result. What one process can't train is impossible: there is nothing to hold it against."""
        folder = Path(server.folder) / "programs"
        folder.mkdir(exist_ok=True)
        program, planted = self.programs[cell]
        fault = faults.parse(planted) if planted else None
        file = files.write(folder, programs.parse(program), fault)
        inject = f"{file}:FAULT" if fault else ""
        try:
            return checking.run(parse(f"{file}:build", ""), server, references, cell, inject)
        except TargetFailed as failed:
            problem = Judgement(Outcome.IMPOSSIBLE, Signature.NO_REFERENCE, one_line(f"{failed} {failed.traceback}"))
            expected = Expectation(Outcome.TRAINS)
            return results.result(cell, problem, Ended([]), server.versions, expected, "expected")
