"""Claims put to the test: which cells support a remedy and which contradict it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from faultline.base.text import matches
from faultline.catalogue import Claim, Failure
from faultline.catalogue.outcomes import Did, Signature
from faultline.cells.cell import Cell, own_values

Outcomes = Mapping[Cell, Did]
"""What each cell did that was run."""


NOT_RUN = ("impossible", "invalid")
"""Outcomes that say nothing of a claim."""
COMPARING = ("helps", "detects", "changes")
"""The kinds of claims that propose another cell."""


@dataclass(frozen=True)
class Verdict:
    """How a claim fared: verified, refuted, conditional (both), or untested if no cell could show it."""

    claim: Claim
    supporting: tuple[Cell, ...]
    against: tuple[Cell, ...]

    @property
    def word(self) -> str:
        if self.supporting and self.against:
            return "conditional"
        return "verified" if self.supporting else "refuted" if self.against else "untested"


def showing(failure: Failure, outcomes: Outcomes) -> list[Cell]:
    """The broken cells that show the failure: they don't train, and not because of something else."""
    return [
        cell
        for cell, (outcome, signature) in outcomes.items()
        if cell.failure == failure.name
        and cell.broken
        and outcome not in ("trains", *NOT_RUN)
        and signature not in (Signature.OTHER, *failure.also_raises)
    ]


def verdict(
    failure: Failure,
    claim: Claim,
    outcomes: Outcomes,
    others: Outcomes | None = None,
    cells: Collection[Cell] | None = None,
) -> Verdict:
    """Hold a claim against outcomes, as its kind says (see `Claim`); against these cells alone, if they are given.

    `others` has the swapped cells of a claim that swaps the stack; without them no cell can tell.
    """
    if "stack" not in claim.swap:
        others = outcomes
    # Where the failure doesn't show at all, a cell that trains is no merit of anything.
    vacuous = claim.kind == "trains" and not showing(failure, outcomes)
    supporting: list[Cell] = []
    against: list[Cell] = []
    for cell, did in outcomes.items() if cells is None else ((cell, outcomes[cell]) for cell in cells):
        if did.outcome in NOT_RUN or did.signature in failure.also_raises or not is_about(failure, claim, cell):
            continue
        if claim.kind in COMPARING:
            proposed = swapped(failure, claim.swap, cell)
            other = others.get(proposed) if others else None
            same = proposed == cell and others is outcomes
            holds = None if other is None or same or other.outcome in NOT_RUN else _compared(claim, did, other)
        else:
            holds = None if vacuous and did.outcome == "trains" else _supports_by_itself(claim, did)
        if holds is not None:
            (supporting if holds else against).append(cell)
    return Verdict(claim, tuple(supporting), tuple(against))


def _supports_by_itself(claim: Claim, did: Did) -> bool | None:
    """Whether what a cell did supports a claim about it; None if it says nothing."""
    fails = did.outcome != "trains"
    match claim.kind:
        case "fails":
            return fails
        case "trains":
            return not fails
        case "shows" if fails:
            return did.outcome in ("raises", "crashes", "hangs")
        case "present" if fails:
            return False
    return None


def _compared(claim: Claim, did: Did, other: Did) -> bool | None:
    """Whether what a cell did, and the one that the claim proposes instead, supports it; None if they say nothing."""
    fails = did.outcome != "trains"
    match claim.kind:
        case "changes":
            return other != did
        case "helps" if fails and did.signature != Signature.OTHER:  # which is never taken for the failure
            return other.outcome == "trains"
        case "detects" if fails or other.signature == Signature.CHECK:
            return fails and other.signature == Signature.CHECK
    return None


def is_about(failure: Failure, claim: Claim, cell: Cell) -> bool:
    """Whether a claim is about a cell: unless `where` says otherwise, a broken variant in its own places in fp32."""
    if cell.failure != failure.name:
        return False
    where = {"variant": "*broken", "precision": "fp32", **own_values(failure, cell.variant), **claim.where}
    return all(matches(str(getattr(cell, axis)), (pattern,)) for axis, pattern in where.items())


def swapped(failure: Failure, swap: Mapping[str, str], cell: Cell) -> Cell:
    """The cell that a claim with this swap proposes instead; the swap ``remedy`` keeps the trainer of the variant."""
    changes: dict[str, Any] = {axis: value for axis, value in swap.items() if axis in vars(cell)}
    if remedy := swap.get("remedy"):
        changes["variant"] = replace(failure.variant(cell.variant), remedy=remedy).name
    return replace(cell, **changes)
