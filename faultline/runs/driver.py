"""Between those who send cells and those who run them: what an engine asks and reports, and what it is given."""

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.runs import gpus
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.results import Result
from faultline.runs.runner import RunCell, held, run_cell
from faultline.runs.schedule import Lost, Schedule, Slot, Work
from faultline.stacks.environments import HERE, Environment


@dataclass(frozen=True)
class Plan:
    """How cells are run: on so many slots, on a stack, by `run`; for 0 workers, `folders.measure` asks the
    engine how many there can be.

    The stack's `lock` is there for machines that don't have it yet.
    """

    workers: int
    stack: Environment = HERE
    run: RunCell = run_cell


class Driver:
    """What an engine asks and reports, from any thread: a slot is ready, made a reference, has a result, or is lost.

    It alone hands results on, and of several answers to one cell only the first.
    """

    def __init__(self, cells: Sequence[Cell], versions: Mapping[str, str]) -> None:
        self.device = cells[0].device
        self.size = gpus.most(cells)
        self._schedule = Schedule(cells)
        self._versions = versions
        self._changed = threading.Condition()
        self.events: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()

    @property
    def left(self) -> int:
        """How many cells have no result yet."""
        return self._schedule.left

    def ready(self, slot: Slot, wait: float = 0.0) -> Work | None:
        """The next cell of an idle slot; None if there is none within so many seconds, which may change while cells are
        `left`."""
        with self._changed:
            work = self._schedule.next(slot)
            if not work and self.left and wait:
                self._changed.wait(wait)
                work = self._schedule.next(slot)
            return work

    def made(self, cell: Cell) -> None:
        """A cell's reference is there."""
        with self._changed:
            self._schedule.made(cell)
            self._changed.notify_all()

    def result(self, slot: Slot, work: Work, entry: Result) -> None:
        """A slot has run its cell."""
        with self._changed:
            if self._schedule.answered(slot, work):
                self.events.put(entry)
            self._changed.notify_all()

    def lost(self, slot: Slot, why: str) -> None:
        """A slot is lost: its cell runs elsewhere, or is `invalid` where that happened too often."""
        with self._changed:
            if lost := self._schedule.lost(slot, why):
                self.events.put(given_up(lost, self._versions))
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Something else than a cell went wrong, which ends the run."""
        self.events.put(error)


class Engine(Protocol):
    """What runs cells: the workers of this machine, or the nodes of a cluster."""

    def room(self) -> int:
        """How many cells it can run at a time, if each is for the CPU."""

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """How many slots run these cells if so many are asked for (0: as many as there are), and why not all."""

    def slots(self, plan: Plan, driver: Driver) -> AbstractContextManager[None]:
        """Start slots, which run what the driver has until nothing is left; leaving with an exception ends them at
        once."""


def given_up(lost: Lost, versions: Mapping[str, str]) -> Result:
    """The result of a cell that several nodes lost."""
    judged = Judgement(Outcome.INVALID, Signature.LOST, f"lost {len(lost.reasons)} times: {'; '.join(lost.reasons)}")
    return held(lost.work.cell, judged, Ended([]), versions)
