"""Claims judged where their failure shows: in a run, or by what is known of an older stack if today's can't tell."""

from dataclasses import dataclass

from faultline import strategies
from faultline.base.markdown import as_code
from faultline.base.packages import TODAY
from faultline.catalogue import REMEDIES, Claim, Failure
from faultline.cells import claims
from faultline.cells.cell import Cell, default_world
from faultline.cells.claims import Verdict
from faultline.cells.words import grouped, order, places
from faultline.observations import measured


@dataclass(frozen=True)
class Judged:
    """A claim's verdict, what the cells do that say most of it, and on which stacks if these aren't the run's."""

    verdict: Verdict
    where: tuple[str, ...]
    stacks: tuple[str, ...] = ()


def stack(failure: Failure, claim: Claim) -> str:
    """The stack whose broken cells put a claim to the test: the older one of an upgrade, or if today's can't tell."""
    if not failure.reported:
        return TODAY
    if "stack" in claim.swap or claims.verdict(failure, claim, measured.outcomes(failure)).word == "untested":
        return failure.reported.stack
    return measured.shown_on(failure)


def known(failure: Failure, claim: Claim) -> Verdict:
    """How a claim fares on the stack that puts it to the test, as far as that was measured."""
    there = stack(failure, claim)
    others = measured.outcomes(failure, claim.swap.get("stack", there))
    return claims.verdict(failure, claim, measured.outcomes(failure, there), others)


def on_record(failure: Failure, claim: Claim) -> Judged:
    """How a claim fares by what was measured before, and on which stacks if not today's."""
    verdict, there = known(failure, claim), stack(failure, claim)
    other = claim.swap.get("stack", there)
    places = where(failure, verdict, measured.outcomes(failure, other))
    return Judged(verdict, tuple(places), () if there == TODAY else tuple(dict.fromkeys((there, other))))


WORDS = {"misplaced": "misplaced", "diverges": "silent", "raises": "raises", "hangs": "hangs", "crashes": "crashes"}


def endings(failure: Failure, stack: str = TODAY, precision: str = "fp32") -> list[str]:
    """How the broken variants end on a stack, at the usual world size, and under which strategies."""
    names: dict[str, dict[str, None]] = {}
    outcomes = measured.outcomes(failure, stack)
    for cell in claims.showing(failure, outcomes):
        if cell.precision == precision and cell.world_size == default_world(cell):
            names.setdefault(WORDS[outcomes[cell][0]], {})[cell.strategy] = None
    return [f"{word}: {as_code(grouped(under, strategies.names()))}" for word, under in names.items()]


def where(failure: Failure, verdict: Verdict, observed: claims.Outcomes) -> list[str]:
    """The cells that say most of a claim, one text for each outcome: those against it, or those that it changes.

    What was observed is that of the swapped cells, where these are of another stack.
    """
    cells = (*verdict.supporting, *verdict.against)
    cells_shown = verdict.supporting if verdict.claim.kind == "changes" else verdict.against
    # A claim that proposes a cell is contradicted by what that cell does.
    judged = {
        cell: claims.swapped(failure, verdict.claim.swap, cell) if verdict.claim.swap else cell for cell in cells_shown
    }
    by_outcome: dict[str, list[Cell]] = {}
    for cell in sorted(judged, key=order):
        by_outcome.setdefault(str(observed[judged[cell]]), []).append(cell)
    return [
        outcome if len(there) == len(cells) else f"{outcome} under {', '.join(places(there, cells))}"
        for outcome, there in by_outcome.items()
    ]


def first_remedy(failure: Failure) -> str:
    """The first verified remedy in the order of the record, else the first conditional one; empty if none helps."""
    words = {claim.text: known(failure, claim).word for claim in failure.claims.values() if claim.kind in REMEDIES}
    verified = [text for text, word in words.items() if word == "verified"]
    conditional = [f"in some places: {text}" for text, word in words.items() if word == "conditional"]
    return next(iter(verified + conditional), "")


def today(failure: Failure) -> str:
    """Where a failure happens on today's stack, or which stack showed it if today's doesn't."""
    if here := endings(failure):
        return "; ".join(here)
    if not failure.reported:
        return "not reproduced"
    stack, precision = failure.reported.stack, failure.reported.precision
    setting = stack.replace("-", " ") + (f" in {precision}" if precision != "fp32" else "")
    return f"nowhere any more; with {setting}, {'; '.join(endings(failure, stack, precision))}"
