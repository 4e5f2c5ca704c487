"""Cells on a baseline and then on a candidate, again what changed, and the first regression as soon as it shows."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from faultline.base.text import cut
from faultline.cells.cell import Cell
from faultline.releases import changes
from faultline.releases.changes import Change, Comparison
from faultline.runs import campaigns
from faultline.runs.campaigns import Campaign, Enough, Measured
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks.environments import Environment
from faultline.stacks.requests import Stack


@dataclass
class Watch:
    """Reports a candidate's first regression as soon as a result shows it and, if asked, ends the measurement.

    It is made when both environments are ready: from `began` on, a clock in seconds, the report says how long it took.
    """

    fail_fast: bool = False
    before: Mapping[Cell, Result] = field(default_factory=dict)
    first: Change | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def enough(self) -> bool:
        return self.fail_fast and self.first is not None

    def see(self, entry: Result) -> None:
        if entry.cell not in self.before:
            return
        change = changes.changed(entry.cell, [self.before[entry.cell]], [entry])
        if change and change.kind in changes.WORSE and not self.first:
            self.first = change
            what = f"{changes.observed(change.before)} → {changes.observed(change.after)}"
            when = f"first regression, {time.monotonic() - self.began:.0f} s after both environments were ready"
            campaigns.note(cut(f"{when}: {entry.cell.id} {change.kind}: {what}: {change.error}", 300))
        if self.enough:
            raise Enough


@dataclass(frozen=True)
class Both:
    """A baseline and a candidate, with the packages that were resolved for each, and what watches their results."""

    campaign: Campaign
    stacks: tuple[Measured, Measured]
    watch: Watch

    @cached_property
    def environments(self) -> tuple[Environment, Environment]:
        old, new = (campaigns.ready(Stack(each.name), each.lock) for each in self.stacks)
        return old, new

    def lacking(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        """The cells that are still to be measured on the baseline, and on the candidate."""
        names = [(self._shared(each), Stack(each.name)) for each in self.stacks]
        return [campaigns.lacking(self.campaign, name, stack, cells) for name, stack in names]

    def measure(self, cells: Sequence[Cell], again: int = 0) -> list[Measured]:
        """Measure cells on the baseline and then on the candidate; the last has no results where a stack is
        unusable."""
        measured: list[Measured] = []
        for stack in self.stacks:
            name = f"{self._shared(stack)}{f' again {again}' if again else ''}"
            campaigns.part(self.campaign, name).describe(lock=stack.lock)
            self.watch.before = {entry.cell: entry for entry in measured[0].results} if measured and not again else {}
            measured.append(campaigns.measure(self.campaign, name, Stack(stack.name), cells, again, self.watch.see))
            if measured[-1].unusable:
                break
        return measured

    def end(self, cells: Sequence[Cell]) -> bool:
        """Whether these cells, if there are any, end a comparison: a stack can't start, or a regression is enough."""
        return bool(cells) and (bool(self.measure(cells)[-1].unusable) or self.watch.enough)

    def _shared(self, stack: Measured) -> str:
        """The name under which a campaign has results of a stack's packages; they may have been another question's."""
        parts = [RunFolder(file.parent).info() for file in self.campaign.folder.path.glob("*/run.json")]
        return min((part.name for part in parts if part.lock == stack.lock and part.stack), default=stack.name)


def compare(both: Both, cells: Sequence[Cell]) -> tuple[Comparison, Sequence[Cell]]:
    """Measure cells on both stacks, then as often as it takes those whose change is in doubt; gives also which ran."""
    runs: tuple[list[Measured], list[Measured]] = ([], [])
    repeated: Counter[str] = Counter()
    wanted = list(cells)
    while True:
        measured = both.measure(wanted, len(runs[0]))
        if measured[-1].unusable:
            return Comparison(unusable=f"{measured[-1].name}: {measured[-1].unusable}"), cells
        for side, each in zip(runs, measured, strict=True):
            side.append(each)
        if both.watch.enough:
            cells = [cell for cell in cells if cell.id in runs[1][0].outcomes]
        repeated.update(cell.id for cell in wanted if len(runs[0]) > 1)
        comparison = changes.compare(cells, *([part.results for part in side] for side in runs))
        wanted = changes.pending(comparison, repeated)
        if not wanted:
            return comparison, cells
        campaigns.note(f"{len(wanted)} of {len(comparison.changes)} changed cells run again on both stacks")
