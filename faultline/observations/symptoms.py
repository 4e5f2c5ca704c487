"""Where and how failures end today, and what one sees of a training that goes wrong without an error."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from faultline import strategies
from faultline.base.markdown import as_code
from faultline.base.packages import TODAY
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did, Outcome, Signature
from faultline.cells import claims
from faultline.cells.cell import Cell, default_world
from faultline.cells.words import group_strategies
from faultline.observations import measured, store

RESUMED = "it trains on otherwise after resuming"
RANKS_DIFFER = "ranks hold different weights or buffers"


class SymptomKind(NamedTuple):
    """The outcomes and signatures that show a symptom, and the terms of a report that say so."""

    shown: frozenset[str]
    terms: frozenset[str]


def _kind(terms: str, *shown: str) -> SymptomKind:
    return SymptomKind(frozenset(shown), frozenset(terms.split()))


SYMPTOMS: Mapping[str, SymptomKind] = {
    "weights never move": _kind("unchanged zero like-base undone smaller", Signature.UNMOVED),
    "weights move too far, too little or elsewhere": _kind(
        "larger smaller factor differ wrong worse diverge slow undone clipping last-only", Signature.DIFFERS
    ),
    "the loss or weights are nan": _kind("nan infinite", Signature.NAN),
    RANKS_DIFFER: _kind(
        "differ ranks-alone worse wrong",
        Signature.RANKS_DIFFER,
        Signature.START_DIFFERS,
        Signature.BUFFERS_APART,
        Signature.BUFFERS_DIFFER,
    ),
    "it hangs": _kind("hang full-load", Outcome.HANGS),
    "a rank dies without an error": _kind("dies raises", Outcome.CRASHES),
    "a model stays whole on each GPU": _kind("whole memory device", Outcome.MISPLACED),
    "the checkpoint is empty, or not what was trained": _kind(
        "tiny empty like-base saving size-zero",
        Signature.CHECKPOINT_LACKS,
        Signature.CHECKPOINT_DIFFERS,
        Signature.CHECKPOINT_UNTIED,
    ),
    RESUMED: _kind("resuming", Signature.RESUMED_DIFFERS),
}


def seen_of(cell: Cell, did: Did) -> list[str]:
    """What is seen of a cell that did this: how it ends, and beside that ranks with different weights, where that is
    recorded of it; nothing where it trains or an error says what is wrong."""
    if did.outcome == Outcome.DIVERGES and cell.life != "straight":
        ending = RESUMED
    else:
        ending = next((words for words, kind in SYMPTOMS.items() if {did.outcome, did.signature} & kind.shown), "")
    if not ending:
        return []
    recorded = store.divergences().get(cell.id) if did.outcome == Outcome.DIVERGES else None
    beside = [RANKS_DIFFER] if recorded and recorded.finding.ranks_differ else []
    return [*dict.fromkeys((ending, *beside))]


def by_symptom() -> dict[str, dict[str, Sequence[str]]]:
    """For each symptom, the failures that show it on today's stack, each with its strategies in their order."""
    shown_by: dict[str, dict[str, dict[str, None]]] = {words: {} for words in SYMPTOMS}
    for name, failure in failures().items():
        for cell, did in measured.outcomes(failure).items():
            for words in seen_of(cell, did) if cell.broken else ():
                shown_by[words].setdefault(name, {})[cell.strategy] = None
    order = strategies.names().index
    return {
        words: {name: sorted(where, key=order) for name, where in shown.items()}
        for words, shown in shown_by.items()
        if shown
    }


ENDINGS = {"misplaced": "misplaced", "diverges": "silent", "raises": "raises", "hangs": "hangs", "crashes": "crashes"}


def endings(failure: Failure, stack: str = TODAY, precision: str = "fp32") -> list[str]:
    """How the broken variants end on a stack, at the usual world size, and under which strategies."""
    names: dict[str, dict[str, None]] = {}
    outcomes = measured.outcomes(failure, stack)
    for cell in claims.showing(failure, outcomes):
        if cell.precision == precision and cell.world_size == default_world(cell):
            names.setdefault(ENDINGS[outcomes[cell][0]], {})[cell.strategy] = None
    return [f"{word}: {as_code(group_strategies(under, strategies.names()))}" for word, under in names.items()]


def happens_today(failure: Failure) -> str:
    """Where a failure happens on today's stack, or which stack showed it if today's doesn't."""
    if here := endings(failure):
        return "; ".join(here)
    if not failure.reported:
        return "not reproduced"
    stack, precision = failure.reported.stack, failure.reported.place["precision"]
    setting = stack.replace("-", " ") + (f" in {precision}" if precision != "fp32" else "")
    return f"nowhere any more; with {setting}, {'; '.join(endings(failure, stack, precision))}"
