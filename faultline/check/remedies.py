"""Remedies that are a strategy, a mode or a precision, judged by cells of the model itself."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from faultline.base.text import count, matches
from faultline.catalogue.outcomes import Outcome
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.cells.claims import NOT_RUN
from faultline.check.findings import Group, groups
from faultline.check.known import fine, place
from faultline.observations.remedies import Fate
from faultline.report import claims
from faultline.runs.results import Result

AXES = {"strategy", "checkpointing", "precision"}
"""The axes that a remedy can change of any model's cell."""
MEASURED = {
    "there": "",
    "there in other words": " that end with another error",
    "elsewhere": " elsewhere",
    "other words": " elsewhere that end with another error",
}
"""The words for the scope of a remedy's cells (see `remedies.SCOPES`)."""


@dataclass(frozen=True)
class TriedRemedy:
    """A remedy with what the model's own cells did under it, as far as they were run.

    `fixed` says that it can't be tried, as it is another checkpointing mode and the model checkpoints by itself.
    """

    fate: Fate
    results: tuple[Result, ...]
    fixed: bool = False

    @property
    def helped(self) -> int:
        return sum(map(fine, self.results))

    @property
    def word(self) -> str:
        """The verdict of the model's own cells; where there are none, the catalogue's."""
        if not self.results:
            return self.fate.word
        return "verified" if self.helped == len(self.results) else "conditional" if self.helped else "refuted"

    @property
    def row(self) -> tuple[str, str, str]:
        """The verdict, the remedy and what counts for it, the model's own cells first."""
        [(word, text, cells)] = claims.remedy_rows([self.fate])
        cells += MEASURED[self.fate.scope]
        if not self.results:
            fixed = "your model checkpoints by itself: change that in it"
            return word, text, f"{cells}; {fixed if self.fixed else 'not tried on your model'}"
        under = words.group_strategies(dict.fromkeys(result.cell.strategy for result in self.results), ())
        there = f"your model under {under}: {self.helped} of {count(len(self.results), 'cell')}"
        return self.word, text, f"{there}; in the catalogue {word}, {cells}"


def judge_remedies(group: Group, results: Collection[Result]) -> list[TriedRemedy]:
    """The remedies of a group, those first that help, and of these those that the model's own cells show."""
    by_cell = {result.cell: result for result in results if result.outcome not in NOT_RUN}
    itself = all(result.cell.checkpointing == "off" and place(result)[1] != "off" for result in group.results)
    every = [
        TriedRemedy(
            fate,
            tuple(by_cell[cell] for cell in changed(fate, group) if cell in by_cell),
            itself and "checkpointing" in fate.claim.swap,
        )
        for fate in group.fates
    ]
    return sorted(every, key=lambda each: (claims.ORDER.index(each.word), not each.results))


def changed(fate: Fate, group: Group) -> list[Cell]:
    """The cells of the model in which a remedy is to be tried: those that go wrong, with what it changes.

    One of them may go wrong too: then the remedy doesn't help there. Where it changes nothing, it isn't tried.
    """
    claim = fate.claim
    if not {*claim.swap} <= AXES:
        return []
    where = {axis: pattern for axis, pattern in claim.where.items() if axis in AXES - {"precision"}}
    swap: dict[str, Any] = {**claim.swap}
    cells = []
    for result in group.results:
        at = dict(zip(("strategy", "checkpointing"), place(result), strict=True))
        with_it = replace(result.cell, **swap)
        if with_it != result.cell and all(matches(at[axis], (pattern,)) for axis, pattern in where.items()):
            cells.append(with_it)
    return [*dict.fromkeys(cells)]


def untried(results: Sequence[Result]) -> list[Cell]:
    """The cells that remedies of what is wrong lead to, and that were not run.

    A checkpointing mode that the model has under no strategy isn't asked for under another one.
    """
    known = {result.cell for result in results}
    possible = {result.cell.checkpointing for result in results if result.outcome != Outcome.IMPOSSIBLE}
    without = {result.cell.checkpointing for result in results} - possible
    cells = [cell for group in groups(results) for fate in group.fates for cell in changed(fate, group)]
    return [cell for cell in dict.fromkeys(cells) if cell not in known and cell.checkpointing not in without]
