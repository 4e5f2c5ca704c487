"""A life in two halves: what is saved after the first one, and loaded by fresh ranks before the second."""

from pathlib import Path

import torch

from faultline import strategies
from faultline.base.errors import Impossible
from faultline.cells.cell import HALF
from faultline.ranks import compare
from faultline.ranks.job import FIRST, SECOND
from faultline.ranks.run import Run
from faultline.strategies import Wrapped


def span(run: Run) -> range:
    """The steps of this run, numbered through the whole life."""
    return {FIRST: range(HALF), SECOND: range(HALF, run.cell.steps)}.get(run.half, range(run.cell.steps))


def save(run: Run, wrapped: Wrapped) -> None:
    """On every rank: the engine's checkpoint, and beside it what the loop itself knows, as its users write it."""
    folder = Path(run.state)
    strategies.family(run.cell.strategy).save(wrapped, folder)
    scheduler = wrapped.scheduler.state_dict() if wrapped.scheduler else None
    state = {"step": HALF, "random": torch.get_rng_state(), "scheduler": scheduler}
    torch.save(state, folder / f"rank{run.setup.rank}.pt")
    run.report.evidence |= {"saved_after": HALF, "random_state": _digest()}


def load(run: Run, wrapped: Wrapped) -> None:
    """On every rank: what `save` wrote; what was restored is evidence."""
    if wrapped.accelerator:
        raise Impossible("a scenario that trains through accelerate is not resumed yet")
    folder = Path(run.state)
    strategies.family(run.cell.strategy).load(wrapped, folder)
    state = torch.load(folder / f"rank{run.setup.rank}.pt")
    torch.set_rng_state(state["random"])
    if wrapped.scheduler:
        wrapped.scheduler.load_state_dict(state["scheduler"])
    run.inject.resumed(wrapped, run.setup)
    run.report.evidence |= {"resumed_after": state["step"], "random_state": _digest()}


def _digest() -> str:
    return compare.digest({"random": torch.get_rng_state()})
