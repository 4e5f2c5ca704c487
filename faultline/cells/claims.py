"""Claims put to the test: which cells support a remedy and which contradict it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from faultline.base.text import matches
from faultline.catalogue import Claim, Failure
from faultline.catalogue.outcomes import Did, Signature
from faultline.cells.cell import Cell

Outcomes = Mapping[Cell, Did]
"""What each cell did that was run."""


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
        and outcome not in ("trains", "impossible", "invalid")
        and signature not in (Signature.OTHER, *failure.also_raises)
    ]


def verdict(failure: Failure, claim: Claim, outcomes: Outcomes, others: Outcomes | None = None) -> Verdict:
    """Hold a claim against outcomes, as its kind says (see `Claim`).

    `others` has the swapped cells of a claim that swaps the stack; without them no cell can tell.
    """
    if "stack" not in claim.swap:
        others = outcomes
    # Where the failure doesn't show at all, a cell that trains is no merit of anything.
    vacuous = claim.kind == "trains" and not showing(failure, outcomes)
    pro: list[Cell] = []
    contra: list[Cell] = []
    for cell, (outcome, signature) in outcomes.items():
        if outcome in ("invalid", "impossible") or signature in failure.also_raises:
            continue
        if not chosen(failure, claim, cell):
            continue
        fails = outcome != "trains"
        if claim.kind in ("present", "fails", "trains", "shows"):
            holds = {
                "present": False,
                "fails": fails,
                "trains": not fails,
                "shows": outcome in ("raises", "crashes", "hangs"),
            }[claim.kind]
            if not fails and (claim.kind in ("present", "shows") or vacuous):
                continue
            (pro if holds else contra).append(cell)
            continue
        proposed = swapped(failure, claim, cell)
        other = others.get(proposed) if others else None
        if other is None or (proposed == cell and others is outcomes) or other[0] in ("invalid", "impossible"):
            continue
        if claim.kind == "helps":
            if fails and signature != Signature.OTHER:  # which is never taken for the failure
                (pro if other[0] == "trains" else contra).append(cell)
        elif claim.kind == "detects":
            if fails or other[1] == Signature.CHECK:
                (pro if fails and other[1] == Signature.CHECK else contra).append(cell)
        else:
            (pro if other != (outcome, signature) else contra).append(cell)
    return Verdict(claim, tuple(pro), tuple(contra))


def chosen(failure: Failure, claim: Claim, cell: Cell) -> bool:
    """Whether a claim is about a cell: unless `where` says otherwise, a broken variant in fp32."""
    where = {"variant": "*broken", "precision": "fp32", **claim.where}
    return cell.failure == failure.name and all(
        matches(str(getattr(cell, axis)), (pattern,)) for axis, pattern in where.items()
    )


def swapped(failure: Failure, claim: Claim, cell: Cell) -> Cell:
    """The cell that the claim proposes instead; the swap ``remedy`` keeps the trainer of the variant."""
    swap, variant = claim.swap, claim.swap.get("variant", cell.variant)
    if remedy := swap.get("remedy"):
        variant = replace(failure.variant(cell.variant), remedy=remedy).name
    strategy, mode = swap.get("strategy", cell.strategy), swap.get("checkpointing", cell.checkpointing)
    return replace(
        cell, variant=variant, strategy=strategy, checkpointing=mode, precision=swap.get("precision", cell.precision)
    )
