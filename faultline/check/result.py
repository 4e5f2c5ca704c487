"""The result of a check, which prints as the command shows it."""

from dataclasses import dataclass

from rich.console import Console

from faultline.base.console import printed, write_line
from faultline.check import findings, view
from faultline.check.findings import Group
from faultline.runs.results import Result, finite
from faultline.runs.storage import RunFolder


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What each cell of a model did, and what is wrong with those that differ from a single process.

    `str` is the answer of `faultline check`, as it is written to a file.

    - `target`: what was checked, as the command line names it; `options`: those that it was given with
    - `cells`: a `Result` for each cell, in the order of the matrix: its `cell`, `outcome`, `signature`, `detail`, ...
    - `folder`: where the cells were written, if they were
    - `remedies`: results of other cells, in which remedies were tried; they don't count for the answer
    """

    target: str
    options: tuple[str, ...]
    cells: tuple[Result, ...]
    folder: RunFolder | None = None
    remedies: tuple[Result, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether any cell could be run."""
        return findings.ran(self.cells)

    @property
    def decided(self) -> bool:
        """Whether anything is known of the strategies: nothing is where only a single process could be run."""
        return findings.decided(self.cells)

    @property
    def agrees(self) -> bool:
        """Whether every cell that could be run does what one process does, and one of several ranks is among them."""
        return findings.agrees(self.cells)

    @property
    def verdict(self) -> str:
        """The answer in a line."""
        return view.verdict(self.cells)

    @property
    def problems(self) -> list[Group]:
        """The causes, each with its `forms`, and the known failure that it is (`match`), if it is one."""
        return findings.groups(self.cells)

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints; docs/check.md has the keys."""
        values: dict[str, object] = finite(view.as_json(self.cells, self.remedies))
        return values

    def show(self, console: Console) -> None:
        view.show(console, self.target, self.options, self.cells, self.remedies)
        if self.folder:
            write_line(console, f"results: {self.folder.shown}/cells.jsonl")

    def __str__(self) -> str:
        return printed(self.show)

    def __repr__(self) -> str:
        return f"CheckResult({self.target!r}, agrees={self.agrees}, cells={len(self.cells)})"
