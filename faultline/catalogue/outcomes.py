"""What a cell did, by name."""

from __future__ import annotations

from enum import StrEnum

from faultline.base.text import one_line

NO_REFERENCE = "reference"  # the signature of an invalid cell whose scenario raises in one process already
OWN = "own-fault"  # the signature of an invalid cell that this suite's own code brought to its end


class Outcome(StrEnum):
    """What a cell did.

    trains       every step ran on every rank and agrees with the reference
    raises       an exception; `signature` names it, or is ``other``
    diverges     no error, but gradients or weights are not the reference's
    misplaced    a model that should be sharded or moved is not
    hangs        ranks are alive and make no progress
    crashes      a rank died of a signal or left without a word
    impossible   the cell can't exist here, with the reason
    invalid      no evidence that what its name says really ran; never a pass
    """

    TRAINS = "trains"
    RAISES = "raises"
    DIVERGES = "diverges"
    MISPLACED = "misplaced"
    HANGS = "hangs"
    CRASHES = "crashes"
    IMPOSSIBLE = "impossible"
    INVALID = "invalid"


def named(outcome: str, *signatures: str) -> str:
    """An outcome with its signatures behind it: ``raises (no-grad-fn)``."""
    known = " or ".join(filter(None, signatures))
    return one_line(f"{outcome} ({known})" if known else outcome)
