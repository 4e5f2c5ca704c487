"""Claims put to the test: which cells speak for a remedy and which against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from faultline.catalogue import Claim, Failure
from faultline.matrix import Cell, matches

Outcomes = Mapping[Cell, tuple[str, str]]
"""Outcome and signature of each cell that was run."""


@dataclass(frozen=True)
class Verdict:
    """How a claim fared: verified, refuted, conditional (both), or untested where no cell could speak."""

    claim: Claim
    speaks_for: tuple[Cell, ...]
    against: tuple[Cell, ...]

    @property
    def word(self) -> str:
        if self.speaks_for and self.against:
            return "conditional"
        return "verified" if self.speaks_for else "refuted" if self.against else "untested"


def verdict(failure: Failure, claim: Claim, outcomes: Outcomes) -> Verdict:
    """Hold a claim against outcomes, as its kind says (see `Claim`)."""
    pro: list[Cell] = []
    contra: list[Cell] = []
    for cell, (outcome, signature) in outcomes.items():
        if outcome in ("invalid", "impossible") or signature in failure.elsewhere:
            continue
        if not _chosen(failure, claim, cell):
            continue
        if claim.kind in ("fails", "trains", "shows"):
            holds = {
                "fails": outcome != "trains",
                "trains": outcome == "trains",
                "shows": outcome in ("raises", "crashes", "hangs"),
            }[claim.kind]
            if claim.kind == "shows" and outcome == "trains":
                continue
            (pro if holds else contra).append(cell)
            continue
        instead = swapped(failure, claim, cell)
        other = outcomes.get(instead)
        if other is None or instead == cell or other[0] in ("invalid", "impossible"):
            continue
        fails = outcome != "trains"
        if claim.kind == "helps":
            if fails:
                (pro if other[0] == "trains" else contra).append(cell)
        elif claim.kind == "detects":
            if fails or other[1] == "check":
                (pro if fails and other[1] == "check" else contra).append(cell)
        else:
            (pro if other != (outcome, signature) else contra).append(cell)
    return Verdict(claim, tuple(pro), tuple(contra))


def _chosen(failure: Failure, claim: Claim, cell: Cell) -> bool:
    """Whether a claim is about a cell: unless `where` says otherwise, a broken variant in fp32."""
    where = {"variant": "*broken", "precision": "fp32", **claim.where}
    return cell.failure == failure.name and all(
        matches(str(getattr(cell, axis)), (pattern,)) for axis, pattern in where.items()
    )


def swapped(failure: Failure, claim: Claim, cell: Cell) -> Cell:
    """The cell that the claim proposes instead; the swap ``remedy`` keeps the trainer of the variant."""
    changes: dict[str, Any] = dict(claim.swap)
    remedy = changes.pop("remedy", None)
    if remedy:
        trainer = failure.variant(cell.variant).trainer
        changes["variant"] = f"{trainer}-{remedy}" if trainer else remedy
    return replace(cell, **changes)
