"""A case: a program under a strategy, which is one cell."""

import json
from dataclasses import dataclass
from typing import Any

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.cells.cell import PRECISIONS, WORLD_SIZES, Cell
from faultline.programs import program as programs
from faultline.programs.fault import Fault
from faultline.programs.program import Program

VARIANT = "program"  # where a cell's id has its variant


@dataclass(frozen=True)
class Case:
    """A program, and where it trains; with a `fault`, one is planted in it."""

    program: Program
    strategy: str
    precision: str = "fp32"
    world_size: int = 2
    fault: Fault | None = None

    @property
    def cell(self) -> Cell:
        """The cell that it is: its failure is the program's digest."""
        digest, variant = self.program.digest, f"{VARIANT}-{self.fault.digest}" if self.fault else VARIANT
        return Cell(digest, variant, self.strategy, precision=self.precision, world_size=self.world_size)

    @property
    def pruned(self) -> Program:
        """The program without settings of other engines."""
        return self.program.under(strategies.family_name(self.strategy), self.strategy)

    @property
    def words(self) -> str:
        return f"{self.pruned.words} under {self.strategy}"

    def as_json(self) -> dict[str, Any]:
        """What spec.json holds: the strategy, and what of the rest is not plain."""
        where = {"strategy": self.strategy, "precision": self.precision, "world_size": self.world_size}
        return {**where, **json.loads(self.program.to_json())}


def parse(text: str) -> Case:
    """Read a case back; raises UsageError for anything else."""
    try:
        values = json.loads(text)
        strategy, precision, world = (values.pop(name) for name in ("strategy", "precision", "world_size"))
    except (ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f"not a spec of explore: {text[:200]!r}") from None
    if strategy not in strategies.names() or precision not in PRECISIONS or world not in WORLD_SIZES:
        raise UsageError(f"not a spec of explore: {text[:200]!r} has no valid strategy, precision or world_size")
    return Case(programs.parse(json.dumps(values)), strategy, precision, world)
