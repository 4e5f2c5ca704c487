"""Remedies as every command lists them."""

from collections.abc import Iterable

from faultline.base.text import count
from faultline.observations.remedies import Fate

ORDER = ("verified", "conditional", "refuted")


def rows(fates: Iterable[Fate], whose: str = "") -> list[tuple[str, str, str]]:
    """The verdict, the remedy and how many cells support it, the remedies that help first; `whose` cells these are."""

    def row(fate: Fate) -> tuple[str, str, str]:
        text = f"shows it beforehand: {fate.claim.text}" if fate.claim.kind == "detects" else fate.claim.text
        cells = f"{fate.speak_for} of {count(fate.cells, 'cell')}{whose}"
        return fate.word, text, "; ".join((cells, *fate.against))

    return [row(fate) for fate in sorted(fates, key=lambda fate: (ORDER.index(fate.word), fate.claim.kind != "helps"))]
