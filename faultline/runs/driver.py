"""Between those who send cells and those who run them: what an engine asks and reports, and what it is given."""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from faultline.base.errors import NeverReady
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.results import Result
from faultline.runs.runner import RunCell, held, run_cell
from faultline.runs.schedule import Lost, Schedule, Slot, Work
from faultline.stacks.environments import HERE, Environment

MOVED = 20  # cells for each slot, for which it is worth while to start a slot in the place of another


@dataclass(frozen=True)
class Plan:
    """How cells are run: on so many slots, on a stack, by `run`; for 0 workers, `folders.measure` asks the
    engine how many there can be.

    The stack's `lock` is there for machines that don't have it yet.
    """

    workers: int
    stack: Environment = HERE
    run: RunCell = run_cell


def raised(error: NeverReady) -> None:
    """What is done about cells that nothing can run, unless somebody says otherwise."""
    raise error


@dataclass(frozen=True)
class Part:
    """Cells to run on a stack; `done` is called with each result, and `refused` instead if nothing can run them.

    Each slot has so many `gpus`, on an engine whose slots keep the same ones.
    """

    cells: Sequence[Cell]
    stack: Environment
    done: Callable[[Result], None]
    refused: Callable[[NeverReady], None] = raised
    gpus: int = 0


@dataclass(frozen=True)
class Need:
    """What a part needs: slots for cells that wait, beside those that it has. Each has so many GPUs."""

    waiting: int
    slots: int
    gpus: int


Event = tuple[int, Result | NeverReady] | BaseException
"""What becomes of a cell, or of a part, with the part's number; or what ends the run."""


class Driver:
    """What an engine asks and reports, from any thread: a slot is ready, made a reference, has a result, or is lost.

    It alone hands results on, and of several answers to one cell only the first.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.device = parts[0].cells[0].device
        self._schedules = [Schedule(part.cells) for part in parts]
        self._slots: dict[Slot, bool] = {}  # those that an engine opened, and whether they have asked for a cell
        self._opened, self._fresh = Counter[int](), Counter[int]()  # how many of a part these are, and haven't asked
        self._changed = threading.Condition()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @property
    def left(self) -> int:
        """How many cells have no result yet."""
        return sum(schedule.left for schedule in self._schedules)

    def needs(self) -> list[Need]:
        """What each part needs of an engine whose slots are opened as they are wanted."""
        with self._changed:
            return self._needs()

    def _needs(self) -> list[Need]:
        return [
            Need(max(0, schedule.waiting - self._fresh[number]), self._opened[number], part.gpus)
            for number, (schedule, part) in enumerate(zip(self._schedules, self.parts, strict=True))
        ]

    def opened(self, slot: Slot) -> None:
        """There is one more slot for a part; it will ask for a cell."""
        with self._changed:
            self._slots[slot] = False
            self._opened[slot.part] += 1
            self._fresh[slot.part] += 1

    def spare(self, slot: Slot) -> bool:
        """Whether a slot's place is of more use to another part: nothing waits in its own, and much does there."""
        with self._changed:
            needs = self._needs()
            return not needs[slot.part].waiting and any(
                need.waiting > (MOVED * (need.slots + 1) if need.slots else 0) for need in needs
            )

    def ready(self, slot: Slot, wait: float = 0.0) -> Work | None:
        """The next cell of an idle slot; None if there is none within so many seconds, which may change while cells are
        `left`."""
        with self._changed:
            if self._slots.get(slot) is False:
                self._slots[slot] = True
                self._fresh[slot.part] -= 1
            schedule = self._schedules[slot.part]
            work = schedule.next(slot)
            if not work and schedule.left and wait:
                self._changed.wait(wait)
                work = schedule.next(slot)
            return work

    def made(self, slot: Slot, cell: Cell) -> None:
        """A cell's reference is there."""
        with self._changed:
            self._schedules[slot.part].made(cell)
            self._changed.notify_all()

    def result(self, slot: Slot, work: Work, entry: Result) -> None:
        """A slot has run its cell."""
        with self._changed:
            if self._schedules[slot.part].answered(slot, work):
                self.events.put((slot.part, entry))
            self._changed.notify_all()

    def lost(self, slot: Slot, why: str) -> None:
        """A slot is lost: its cell runs elsewhere, or is `invalid` where that happened too often."""
        with self._changed:
            asked = self._slots.pop(slot, None)
            self._opened[slot.part] -= asked is not None
            self._fresh[slot.part] -= asked is False
            if lost := self._schedules[slot.part].lost(slot, why):
                self.events.put((slot.part, given_up(lost, self.parts[slot.part].stack.versions)))
            self._changed.notify_all()

    def refused(self, number: int, error: NeverReady) -> None:
        """Nothing can run the cells of a part."""
        with self._changed:
            if self._schedules[number].left:
                self._schedules[number].drop()
                self.events.put((number, error))
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Something else than a cell went wrong, which ends the run."""
        self.events.put(error)


class Engine(Protocol):
    """What runs cells: the workers of this machine, or the nodes of a cluster."""

    @property
    def here(self) -> bool:
        """Whether all its cells run on this machine, on one stack at a time; others take several stacks at a time."""

    def room(self) -> int:
        """How many cells it can run at a time, if each is for the CPU."""

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """How many slots run these cells if so many are asked for (0: as many as there are), and why not all."""

    def parts(self, part: Part) -> Sequence[Part]:
        """A part as this engine runs it: cells that need another kind of slot are a part of their own."""

    def warm(self) -> AbstractContextManager["Engine"]:
        """The same engine for several runs in a row: what can stay up between them does, until this ends."""

    def slots(self, workers: int, run: RunCell, driver: Driver) -> AbstractContextManager[None]:
        """Start slots, which run what the driver has until nothing is left; leaving with an exception ends them at
        once."""


def given_up(lost: Lost, versions: Mapping[str, str]) -> Result:
    """The result of a cell that several nodes lost."""
    judged = Judgement(Outcome.INVALID, Signature.LOST, f"lost {len(lost.reasons)} times: {'; '.join(lost.reasons)}")
    return held(lost.work.cell, judged, Ended([]), versions)
