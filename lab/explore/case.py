"""A case: a program under a strategy, which is one cell, and how it runs: as the check of somebody's own model does."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from faultline import strategies
from faultline.base.axes import DEVICES
from faultline.base.errors import TargetFailed, UsageError
from faultline.catalogue import Variant
from faultline.catalogue.outcomes import Outcome
from faultline.cells import rules
from faultline.cells.cell import Cell
from faultline.check import cell as checking
from faultline.check import target
from faultline.runs.results import Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer
from lab.programs import program as programs
from lab.programs.fault import Fault
from lab.programs.program import Program
from lab.programs.target import write

VARIANT = "program"  # where a cell's id has its variant


@dataclass(frozen=True)
class Case:
    """A program, and where it trains; with a `fault`, one is planted in it."""

    program: Program
    strategy: str
    fault: Fault | None = None
    device: str = "cpu"

    @property
    def cell(self) -> Cell:
        """The cell that it is: its failure is the program's digest."""
        training, variant = self.program.training, f"{VARIANT}-{self.fault.digest}" if self.fault else VARIANT
        digest, precision, world, life = self.program.digest, training.precision, training.world_size, training.life
        return Cell(digest, variant, self.strategy, training.checkpointing, precision, world, self.device, life)

    @property
    def possible(self) -> bool:
        """Whether its strategy has so many ranks, and such a life."""
        return not any(rule.leaves_out(self.cell, Variant(VARIANT)) for rule in rules.IMPOSSIBLE)

    @property
    def pruned(self) -> Program:
        """The program without settings of other engines."""
        return self.program.under(strategies.family_name(self.strategy), self.strategy)

    @property
    def words(self) -> str:
        return f"{self.pruned.words} under {self.strategy}{'' if self.device == 'cpu' else f' on {self.device}'}"

    def as_json(self) -> dict[str, Any]:
        """What spec.json holds: the strategy, the device unless it is the CPU, and the program."""
        device = {} if self.device == "cpu" else {"device": self.device}
        return {"strategy": self.strategy, **device, **json.loads(self.program.to_json())}


def parse(text: str) -> Case:
    """Read a case back; raises UsageError for anything else."""
    try:
        values = json.loads(text)
        strategy, device = values.pop("strategy"), values.pop("device", "cpu")
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f"not a spec of explore: {text[:200]!r}") from None
    if strategy not in strategies.names():
        raise UsageError(f"not a spec of explore: {text[:200]!r} has no valid strategy")
    if device not in DEVICES:
        raise UsageError(f"not a spec of explore: {text[:200]!r} has no valid device")
    return Case(programs.parse(json.dumps(values)), strategy, device=device)


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
        file = write(folder, case.program)
        inject = case.fault.injection if case.fault else ""
        made = replace(target.parse(f"{file}:build", ""), trainer=case.program.trainer, sketched=True)
        try:
            return checking.run(made, server, references, cell, inject)
        except TargetFailed as failed:
            return checking.without_reference(cell, failed, Outcome.IMPOSSIBLE, server)
