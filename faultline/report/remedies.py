"""Remedies as every command lists them."""

from collections.abc import Iterable

from faultline.observations.remedies import Fate

ORDER = ("verified", "conditional", "refuted")


def lines(fates: Iterable[Fate]) -> list[str]:
    """A line for each remedy, the ones that help first: the verdict, the remedy, and how many cells support it."""

    def line(fate: Fate) -> str:
        text = f"shows it beforehand: {fate.claim.text}" if fate.claim.kind == "detects" else fate.claim.text
        count = f"{fate.speak_for} of {fate.cells} {'cell' if fate.cells == 1 else 'cells'}"
        return f"{fate.word:<11}  {text}  [{'; '.join((count, *fate.against))}]"

    return [line(fate) for fate in sorted(fates, key=lambda fate: (ORDER.index(fate.word), fate.claim.kind != "helps"))]
