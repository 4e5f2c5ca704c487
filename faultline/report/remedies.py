"""Remedies as every command lists them."""

from collections.abc import Iterable

from faultline.base.text import count
from faultline.catalogue import Claim
from faultline.observations.remedies import Fate

ORDER = ("verified", "conditional", "refuted")
DETECTS = "detects"  # the kind of a claim of something that shows a failure beforehand


def rows(fates: Iterable[Fate], whose: str = "") -> list[tuple[str, str, str]]:
    """The verdict, the remedy and how many cells support it, the remedies that help first; `whose` cells these are."""

    def row(fate: Fate) -> tuple[str, str, str]:
        return fate.word, worded(fate.claim), _did(fate, whose)

    return [row(fate) for fate in sorted(fates, key=lambda fate: (ORDER.index(fate.word), fate.claim.kind != "helps"))]


def worded(claim: Claim) -> str:
    """A claim in words; of one that no remedy is, what it says that something does."""
    return f"shows it beforehand: {claim.text}" if claim.kind == DETECTS else claim.text


def apart(fates: Iterable[Fate], whose: str = "") -> list[tuple[str, str, str]]:
    """As `rows`, with a label of its own for what only shows the failure, and so is no remedy."""
    every = [*fates]
    checks = sorted((fate for fate in every if fate.claim.kind == DETECTS), key=lambda fate: ORDER.index(fate.word))
    return rows((fate for fate in every if fate not in checks), whose) + [
        ("misses it" if fate.word == "refuted" else "how to check", fate.claim.text, _did(fate, whose))
        for fate in checks
    ]


def _did(fate: Fate, whose: str) -> str:
    return "; ".join((f"{fate.speak_for} of {count(fate.cells, 'cell')}{whose}", *fate.against))
