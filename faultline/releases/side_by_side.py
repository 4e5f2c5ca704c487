"""Cells on a candidate, on the baseline those that may be worse, again what changed, and the first regression."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain

from faultline.base.packages import untagged
from faultline.base.text import cut
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.expected import Basis, Expectation
from faultline.observations import measured
from faultline.releases import changes, sampling
from faultline.releases.changes import CellChange, Comparison
from faultline.runs import campaigns
from faultline.runs.campaigns import Campaign, Enough, Measured
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks.environments import Environment
from faultline.stacks.requests import Stack


@dataclass
class RegressionWatch:
    """Reports a candidate's first regression as soon as both results of a cell are there and, if asked, ends the
    measurement.

    It is made when both environments are ready: from `began` on, a clock in seconds, the report says how long it took.
    """

    fail_fast: bool = False
    first: CellChange | None = None
    began: float = field(default_factory=time.monotonic)
    sides: tuple[dict[Cell, Result], dict[Cell, Result]] = field(default_factory=lambda: ({}, {}))

    @property
    def enough(self) -> bool:
        return self.fail_fast and self.first is not None

    def see(self, side: int, entry: Result) -> None:
        """A result of the baseline, side 0, or of the candidate, side 1."""
        self.sides[side][entry.cell] = entry
        before, after = (results.get(entry.cell) for results in self.sides)
        change = changes.change_of(entry.cell, [before], [after]) if before and after else None
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
    watch: RegressionWatch

    @cached_property
    def environments(self) -> tuple[Environment, Environment]:
        old, new = (campaigns.ready(Stack(each.name), each.lock) for each in self.stacks)
        return old, new

    def to_measure(self, cells: Sequence[Cell]) -> list[list[Cell]]:
        """The cells that are still to be measured on each side, if each does what is expected of the baseline."""
        fails = [cell for cell in cells if self._expected(cell).outcome != Outcome.TRAINS]
        return [self._to_measure(0, fails[:: sampling.TENTH] if self.recorded else fails), self._to_measure(1, cells)]

    def measure(self, cells: Sequence[Cell], again: int = 0) -> list[Measured]:
        """Measure cells on the candidate, and on the baseline those that may be worse or better there, or that cost
        nothing as they are cached; `again`, all on both.

        A cell that trains on the candidate can't have got worse, whatever the baseline does. Of those that fail just as
        the baseline is recorded to, a sample runs there. Gives the baseline and the candidate, or only one that is
        unusable.
        """
        if again:
            return self._until_unusable([(0, cells), (1, cells)], again)
        missing = {*self._to_measure(0, cells)}
        there = [cell for cell in cells if cell not in missing]
        known = self._until_unusable([(0, there), (1, cells)])
        if known[-1].unusable or self.watch.enough:
            return known
        results = {entry.cell: entry for entry in known[1].results}
        as_expected = {cell for cell in cells if self._as_expected(results[cell])}
        spared = {cell for cell in missing & as_expected if results[cell].outcome == Outcome.TRAINS}
        fail_as_recorded = [cell for cell in cells if cell in missing and self.fails_as_recorded(results[cell])]
        spared |= {*fail_as_recorded} - {*fail_as_recorded[:: sampling.TENTH]}
        wanted = [cell for cell in cells if cell not in spared]
        likely_worse_first = sorted(wanted, key=as_expected.__contains__)
        return [*self._until_unusable([(0, likely_worse_first)]), known[1]]

    def end(self, cells: Sequence[Cell]) -> bool:
        """Whether these cells, if there are any, end a comparison: a stack can't start, or a regression is enough."""
        return bool(cells) and (any(each.unusable for each in self.measure(cells)) or self.watch.enough)

    def _until_unusable(self, asked: Sequence[tuple[int, Sequence[Cell]]], again: int = 0) -> list[Measured]:
        sides: list[Measured] = []
        for side, cells in asked:
            stack = self.stacks[side]
            name = f"{self._shared(stack)}{f' again {again}' if again else ''}"
            campaigns.part(self.campaign, name).describe(lock=stack.lock)
            seen = partial(self.watch.see, side) if not again else lambda entry: None
            sides.append(campaigns.measure(self.campaign, name, Stack(stack.name), cells, again, seen))
            if sides[-1].unusable:
                return sides[-1:]
        return sides

    def _to_measure(self, side: int, cells: Sequence[Cell]) -> list[Cell]:
        stack = self.stacks[side]
        return campaigns.lacking(self.campaign, self._shared(stack), Stack(stack.name), cells) if cells else []

    @cached_property
    def recorded(self) -> bool:
        """Whether the baseline has today's pins, on which each cell is measured, and recorded in expected.toml."""
        pins, versions = measured.pinned(), untagged(self.environments[0].versions)
        return all(versions.get(name) == version for name, version in pins.items())

    def fails_as_recorded(self, candidate: Result) -> bool:
        """Whether a candidate's cell fails just as it is recorded of the baseline, by an outcome that says how."""
        named = candidate.outcome != Outcome.TRAINS and candidate.signature not in changes.UNNAMED
        if not (named and self.recorded and self._expected(candidate.cell).basis is Basis.MEASURED):
            return False
        return self._as_expected(candidate)

    def _as_expected(self, candidate: Result) -> bool:
        """Whether a candidate's cell does what is expected of the baseline."""
        return expected.verdict(self._expected(candidate.cell), *candidate.did) == "expected"

    def _expected(self, cell: Cell) -> Expectation:
        """What a cell is expected to do on the baseline."""
        return expected.expect(expected.rules(failures()[cell.failure]), cell, self.environments[0].versions)

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
        sides = both.measure(wanted, len(runs[0]))
        if unusable := next((side for side in sides if side.unusable), None):
            return Comparison(unusable=f"{unusable.name}: {unusable.unusable}"), cells
        for run, side in zip(runs, sides, strict=True):
            run.append(side)
        recorded = {entry.cell for entry in runs[1][0].results if both.fails_as_recorded(entry)}
        if both.watch.enough:
            did, does = ({entry.cell: entry.outcome for entry in run[0].results} for run in runs)
            cells = [c for c in cells if c in does and (c in did or c in recorded or does[c] == Outcome.TRAINS)]
        repeated.update(cell.id for cell in wanted if len(runs[0]) > 1)
        old, new = ([side.results for side in run] for run in runs)
        comparison = compare_results(cells, old, new, recorded)
        wanted = cells_to_repeat(comparison, repeated)
        if not wanted:
            return comparison, cells
        campaigns.note(f"{len(wanted)} of {len(comparison.changes)} changed cells run again on both stacks")


def compare_results(
    cells: Sequence[Cell],
    before: Iterable[Sequence[Result]],
    after: Iterable[Sequence[Result]],
    recorded: Collection[Cell] = (),
) -> Comparison:
    """Hold two stacks against each other; each side is its runs, the first of all cells, others of some again.

    Cells need no run on the baseline that train on the candidate, or fail there as is `recorded` of the baseline.
    """
    sides = _by_cell(before), _by_cell(after)
    every, unproven = list[CellChange](), 0
    compared, trained, as_recorded = list[Cell](), list[Cell](), list[Cell]()
    for cell in cells:
        old, new = (side.get(cell.id, []) for side in sides)
        if not old and new and (all(map(changes.trained, new)) or cell in recorded):
            (as_recorded if cell in recorded else trained).append(cell)
            continue
        proven = [changes.proven(side) for side in (old, new)]
        if all(any(r.outcome != Outcome.IMPOSSIBLE for r in side) for side in proven):
            compared.append(cell)
        unproven += not any(proven)
        if change := changes.change_of(cell, old, new):
            every.append(change)
    strategies = frozenset(cell.strategy for cell in (*compared, *trained, *as_recorded))
    return Comparison(len(cells), len(compared), len(trained), len(as_recorded), strategies, unproven, tuple(every))


def cells_to_repeat(comparison: Comparison, repeated: Mapping[str, int]) -> list[Cell]:
    """The cells to measure again: some of each cause, all of one that has a doubtful cell, the doubtful more often.

    `repeated` says how often each cell was measured again, by its id.
    """
    chosen = []
    for alike in changes.group_by(comparison.changes, lambda change: change.cause):
        doubtful = any(repeated.get(change.cell.id) and change.unsteady for change in alike)
        for number, change in enumerate(alike):
            times = repeated.get(change.cell.id, 0)
            if (
                (change.unsteady and change.hides and times < changes.REPEATS)
                if times
                else (doubtful or number < changes.SAMPLE)
            ):
                chosen.append(change.cell)
    return chosen


def _by_cell(runs: Iterable[Collection[Result]]) -> dict[str, list[Result]]:
    results: dict[str, list[Result]] = {}
    for entry in chain(*runs):
        results.setdefault(entry.cell.id, []).append(entry)
    return results
