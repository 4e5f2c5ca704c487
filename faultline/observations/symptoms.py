"""What one sees of a training that goes wrong without an error, and the failures of which that is seen today."""

from collections.abc import Mapping, Sequence

from faultline import strategies
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did, Outcome, Signature
from faultline.cells.cell import Cell
from faultline.observations import measured

RESUMED = "it trains on otherwise after resuming"
# By what is seen: the outcomes and signatures that show it.
SYMPTOMS: Mapping[str, frozenset[str]] = {
    "weights never move": frozenset({Signature.UNMOVED}),
    "weights move too far, too little or elsewhere": frozenset({Signature.DIFFERS}),
    "the loss or weights are nan": frozenset({Signature.NAN}),
    "ranks hold different weights or buffers": frozenset(
        {Signature.RANKS_DIFFER, Signature.START_DIFFERS, Signature.BUFFERS_APART, Signature.BUFFERS_DIFFER}
    ),
    "it hangs": frozenset({Outcome.HANGS}),
    "a rank dies without an error": frozenset({Outcome.CRASHES}),
    "a model stays whole on each GPU": frozenset({Outcome.MISPLACED}),
    "the checkpoint is empty, or not what was trained": frozenset(
        {Signature.CHECKPOINT_LACKS, Signature.CHECKPOINT_DIFFERS, Signature.CHECKPOINT_UNTIED}
    ),
    RESUMED: frozenset({Signature.RESUMED_DIFFERS}),
}


def symptom(cell: Cell, did: Did) -> str:
    """What is seen of a cell that did this; empty where it trains or an error says what is wrong."""
    if did.outcome == Outcome.DIVERGES and cell.life != "straight":
        return RESUMED
    return next((words for words, shown in SYMPTOMS.items() if {did.outcome, did.signature} & shown), "")


def by_symptom() -> dict[str, dict[str, Sequence[str]]]:
    """For each symptom, the failures that show it on today's stack, each with its strategies in their order."""
    shown_by: dict[str, dict[str, dict[str, None]]] = {words: {} for words in SYMPTOMS}
    for name, failure in failures().items():
        for cell, did in measured.outcomes(failure).items():
            if cell.broken and (words := symptom(cell, did)):
                shown_by[words].setdefault(name, {})[cell.strategy] = None
    order = strategies.names().index
    return {
        words: {name: sorted(where, key=order) for name, where in shown.items()} for words, shown in shown_by.items() if shown
    }
