"""A life in two halves: trained and saved, then loaded by fresh ranks and trained on."""

import tempfile
from collections.abc import Callable
from dataclasses import replace

from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.ranks.job import FIRST, SECOND, Job
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.supervisor import RankServer


def in_two_halves(
    server: RankServer, job: Job, judge: Callable[[Cell, Ended, int], Judgement]
) -> tuple[Ended, Judgement]:
    """Train half of a life and save; if that trains, have fresh ranks load and train on, in a resized life fewer."""
    cell = Cell.parse(job.cell)
    before = replace(cell, world_size=cell.saved_by)
    with tempfile.TemporaryDirectory(dir=server.folder, prefix="half-") as folder:
        job = replace(job, checkpoint="", state=folder)
        first = server.run(replace(job, cell=before.id, world_size=before.world_size, half=FIRST))
        judged = judge(before, first, FIRST)
        if judged.outcome is not Outcome.TRAINS:
            return first, judged
        second = server.run(replace(job, half=SECOND))
    return second, resumed(judge(cell, second, SECOND), first, second)


def resumed(after: Judgement, first: Ended, second: Ended) -> Judgement:
    """What a second half shows of the checkpoint that it began with, where the first half trained."""
    if after.outcome is Outcome.DIVERGES:
        return replace(after, signature=Signature.RESUMED_DIFFERS, detail=f"after resuming: {after.detail}")
    lost = [
        number
        for number, (one, other) in enumerate(zip(first.ranks, second.ranks, strict=False))
        if one.evidence.get("random_state") != other.evidence.get("random_state")
    ]
    if after.outcome is Outcome.TRAINS and lost:
        detail = f"after resuming: the random state of rank {' and '.join(map(str, lost))} is another one"
        return replace(after, outcome=Outcome.DIVERGES, signature=Signature.RESUMED_DIFFERS, detail=detail)
    return after
