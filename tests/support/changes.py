"""Results as the tests of is-safe make them up: an outcome is written as ``raises:other:the error's text``."""

from itertools import islice, product

from faultline.cells.cell import Cell
from faultline.releases import side_by_side
from faultline.runs.results import RankError, RankResult
from tests.support import entries

STRATEGIES = ("zero1", "zero1-small", "zero2", "zero2-small", "zero3", "ddp", "fsdp2")


def cells(count):
    """Distinct cells of one failure and then of another."""
    modes = ("off", "reentrant", "non-reentrant")
    failures, more = ("zero3_dummy_loss", "grpo_lora_no_grad"), product(("fp32", "bf16"), (2, 4))
    axes = product(more, failures, STRATEGIES, modes)
    return [Cell(f, "broken", s, mode, *other) for other, f, s, mode in islice(axes, count)]


def entry(cell, expected):
    """A cell's result; ``invalid:evidence+error`` is one of ranks that raised before they proved anything."""
    outcome, signature, detail = (*expected.split(":", 2), "", "")[:3]
    signature, _, error = signature.partition("+")
    rank = RankResult(0, error=RankError("Error", detail, "") if error or outcome == "raises" else None)
    return entries.entry(cell, outcome, signature, detail=detail, ranks=(rank,))


def compared(before, after, again=()):
    """The comparison of stacks whose cells did the one and the other, in order; `again` has (before, after) by number.

    A word of None says that the cell wasn't measured.
    """
    relevant = cells(max(len(before), len(after)))
    sides = [
        [[entry(cell, expected) for cell, expected in zip(relevant, side, strict=False) if expected is not None]]
        for side in (before, after)
    ]
    for number, *both in again:
        for side, expected in zip(sides, both, strict=True):
            side.append([entry(relevant[number], expected)])
    return side_by_side.compare_results(relevant, *sides)
