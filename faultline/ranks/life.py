"""A life in two halves: what is saved after the first one, and loaded by fresh ranks before the second."""

import hashlib
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.trainer_utils import get_last_checkpoint

from faultline import strategies
from faultline.base.errors import Impossible
from faultline.cells.cell import HALF
from faultline.ranks import compare
from faultline.ranks.job import FIRST, SECOND
from faultline.ranks.run import Run
from faultline.scenario import Scenario
from faultline.strategies import Wrapped


def span(run: Run) -> range:
    """The steps of this run, numbered through the whole life."""
    return {FIRST: range(HALF), SECOND: range(HALF, run.cell.steps)}.get(run.half, range(run.cell.steps))


def save(run: Run, built: Scenario, wrapped: Wrapped) -> None:
    """On every rank: the engine's checkpoint, or the scenario's own, and what the loop knows, as users write it."""
    folder = Path(run.state)
    write = partial(strategies.family(run.cell.strategy).save, wrapped, folder)
    built.keep(write, wrapped, folder) if built.keep else write()
    scheduler = wrapped.scheduler.state_dict() if wrapped.scheduler else None
    state = {"step": HALF, "random": random_state(), "scheduler": scheduler}
    torch.save(state, folder / f"rank{run.setup.rank}.pt")
    run.report.evidence |= {"saved_after": HALF, "random_state": _digest()}


def load(run: Run, built: Scenario, wrapped: Wrapped) -> None:
    """On every rank: what `save` wrote; what was restored is evidence."""
    if wrapped.accelerator:
        raise Impossible("a scenario that trains through accelerate is not resumed yet")
    folder = Path(run.state)
    state = torch.load(folder / f"rank{run.setup.rank}.pt")
    _set_random_state(state["random"])
    if wrapped.scheduler:
        wrapped.scheduler.load_state_dict(state["scheduler"])
    read = partial(strategies.family(run.cell.strategy).load, wrapped, folder)
    built.resume(read, wrapped, folder) if built.resume else read()
    run.inject.resumed(wrapped, run.setup)
    run.report.evidence |= {"resumed_after": state["step"], "random_state": _digest()}


def newest(run: Run) -> str | None:
    """The checkpoint that a trainer resumes; None where it begins."""
    return str(get_last_checkpoint(Path(run.state) / "output")) if run.half == SECOND else None


def saved(run: Run, step: int) -> None:
    """On every rank: what a trainer's checkpoint was saved after, as evidence."""
    run.report.evidence |= {"saved_after": step, "random_state": _digest()}


def resumed(run: Run, trainer: Any) -> None:
    """On every rank, before the first step of a trainer that resumes: what it has restored is evidence."""
    optimizer, scheduler = trainer.optimizer.optimizer, trainer.lr_scheduler
    backward, step = trainer.accelerator.backward, optimizer.step
    inside = Wrapped(trainer.model_wrapped, backward, step, optimizer=optimizer, scheduler=scheduler)
    run.inject.resumed(inside, run.setup)
    run.report.evidence |= {"resumed_after": trainer.state.global_step, "random_state": _digest()}


def remember(run: Run, drawn: int) -> None:
    """What a trainer began with in the first half, as its engine rounded it, and how many tokens it has drawn."""
    torch.save({"initial": run.trace.initial, "held": run.trace.held, "drawn": drawn}, _start_file(run))


def remembered(run: Run) -> None:
    """What a trainer that resumes had begun with: its weights move from there."""
    first = torch.load(_start_file(run))
    run.trace.initial.update(first["initial"])
    run.trace.held.update(first["held"])


def draws(run: Run) -> int:
    """How many tokens a trainer has drawn before it begins or resumes."""
    drawn: int = torch.load(_start_file(run))["drawn"] if run.half == SECOND else 0
    return drawn


def _start_file(run: Run) -> Path:
    return Path(run.state) / f"trainer{run.setup.rank}.pt"


def random_state() -> dict[str, Any]:
    """That of torch, on a GPU too where one is in use, of Python and of numpy, as plain values and tensors."""
    drawn: Any = np.random.get_state()
    kind, keys, *rest = drawn
    state = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": (kind, keys.tolist(), *rest)}
    return state | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {})


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def _digest() -> str:
    state = random_state()
    tensors: dict[str, Any] = {name: state.pop(name) for name in ("torch", "cuda") if name in state}
    return hashlib.blake2b(f"{compare.digest(tensors)} {state}".encode(), digest_size=8).hexdigest()
