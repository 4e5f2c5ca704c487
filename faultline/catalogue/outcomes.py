"""The outcomes of cells, by name."""

from enum import StrEnum
from typing import NamedTuple

from faultline.base.errors import CheckFailed
from faultline.base.text import one_line


class Outcome(StrEnum):
    """The outcome of a cell.

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


# Wrong without an error that could be recognised.
SILENT = frozenset((Outcome.DIVERGES, Outcome.MISPLACED, Outcome.HANGS, Outcome.CRASHES))


class Signature(StrEnum):
    """The oracle's names for ends that no pattern of the failure names; a crash may also have a signal's name."""

    OTHER = "other"  # raises
    CHECK = CheckFailed.kind  # raises: a check that somebody recommends found the problem
    DIFFERS = "differs"  # diverges
    START_DIFFERS = "start-differs"
    UNMOVED = "unmoved"
    NAN = "nan"
    RANKS_DIFFER = "ranks-differ"
    BUFFERS_DIFFER = "buffers-differ"
    BUFFERS_APART = "buffers-apart"
    RESUMED_DIFFERS = "resumed-differs"
    CHECKPOINT_LACKS = "checkpoint-lacks"
    CHECKPOINT_DIFFERS = "checkpoint-differs"
    CHECKPOINT_UNTIED = "checkpoint-untied"
    REFERENCE_MODEL = "reference-model"  # misplaced
    NO_PROGRESS = "no-progress"  # hangs
    SILENT_EXIT = "silent-exit"  # crashes
    EVIDENCE = "evidence"  # invalid
    NO_REFERENCE = "reference"  # invalid: the scenario raises in one process already
    REFERENCE_DIED = "reference-died"  # invalid
    OWN_FAULT = "own-fault"  # invalid: Faultline's own code ended the cell
    SERVER = "server"  # invalid: the rank server died
    MACHINE = "machine"  # invalid: this machine lacked room, open files or the like; no result
    LOST = "lost"  # invalid: the nodes that ran it were lost, or said nothing more


class Did(NamedTuple):
    """An outcome of a cell, and the signature that says of which kind."""

    outcome: str
    signature: str = ""

    def __str__(self) -> str:
        return outcome_text(*self)


def outcome_text(outcome: str, *signatures: str) -> str:
    """An outcome with its signatures behind it: ``raises (no-grad-fn)``."""
    known = " or ".join(filter(None, signatures))
    return one_line(f"{outcome} ({known})" if known else outcome)
