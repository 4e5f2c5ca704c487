"""Which cell goes to which slot: each is answered once, however many slots are lost on the way."""

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.base.errors import NeverReady
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell, reference
from faultline.runs.cache import Cache
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.results import Result, result
from faultline.runs.runner import RunCell, run_cell
from faultline.runs.storage import RunFolder
from faultline.stacks.environments import HERE, Environment

MOVED = 20  # cells for each slot, for which it is worth while to start a slot in the place of another
NODES = 3  # that may lose a cell, or times that one may


@dataclass(frozen=True)
class Batch:
    """Cells on one stack, as they go from a verb to an engine: `run` runs each.

    `folder` is where results are written, which has `known` ones of these cells already; `keep` caches each new one.
    `refused` is called if nothing can run the cells; without it, that is raised. Each slot has so many `gpus`, on an
    engine whose slots keep them.
    """

    cells: Sequence[Cell]
    stack: Environment = HERE
    folder: RunFolder | None = None
    known: Sequence[Result] = ()
    keep: Cache | None = None
    run: RunCell = run_cell
    refused: Callable[[NeverReady], None] | None = None
    gpus: int = 0

    @property
    def written_to(self) -> RunFolder:
        """The folder, of a batch that has one."""
        assert self.folder
        return self.folder


@dataclass(frozen=True)
class Slot:
    """What runs one cell at a time, such as a worker with a rank server of its own, and the node that it is on.

    Its cells are of one batch, by its number.
    """

    name: str
    node: str = ""
    batch: int = 0


@dataclass(frozen=True)
class Work:
    """A cell to run; `number` keeps cells apart that run several times. `lost` are nodes that lost it before."""

    number: int
    cell: Cell
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lost:
    """A cell that is given up, and what was said each time that it was lost."""

    work: Work
    reasons: Sequence[str]


class Schedule:
    """Cells in their order, but for those that wait for a reference. It knows no threads.

    Cells that share a reference wait until the first of them has made it. A cell that was lost goes to another node, if
    there is one. Each of its slots has so many `gpus`.
    """

    def __init__(self, cells: Iterable[Cell], gpus: int = 0) -> None:
        self.gpus = gpus
        # Waiting cells by their reference: that nobody makes yet, that a slot is making, and that is there.
        self._new: dict[Cell, deque[Work]] = {}
        self._pending: dict[Cell, tuple[str, deque[Work]]] = {}
        self._open: dict[Cell, deque[Work]] = {}
        self._again: list[Work] = []
        self._running: dict[str, Work] = {}
        self._slots: dict[str, Slot] = {}
        self._opened: dict[Slot, bool] = {}  # by an engine, and whether they have asked for a cell
        self._fresh = 0  # of these, that haven't
        self._reasons: dict[int, list[str]] = {}
        self._answered: set[int] = set()
        self._total = 0
        for cell in cells:
            self._new.setdefault(reference(cell), deque()).append(Work(self._total, cell))
            self._total += 1
        self._untaken = self._total  # in the first three, counted as they change: a cluster asks often

    @property
    def left(self) -> int:
        """How many cells have no answer yet."""
        return self._total - len(self._answered)

    @property
    def waiting(self) -> int:
        """How many cells have no slot yet: none has taken them, nor will one that is about to ask."""
        return max(0, len(self._again) + self._untaken - self._fresh)

    @property
    def slots(self) -> int:
        """How many slots an engine has opened for these cells."""
        return len(self._opened)

    def opened(self, slot: Slot) -> None:
        """There is one more slot, which will ask for a cell."""
        self._opened[slot] = False
        self._fresh += 1

    def drop(self) -> None:
        """Nothing of it is run any more; what was begun may still answer, and doesn't count."""
        self._new, self._pending, self._open, self._again, self._untaken = {}, {}, {}, [], 0
        self._answered.update(range(self._total))

    def next(self, slot: Slot) -> Work | None:
        """The next cell of an idle slot; None if there is none for it now. While cells are `left`, ask again."""
        self._slots[slot.name] = slot
        if self._opened.get(slot) is False:
            self._opened[slot] = True
            self._fresh -= 1
        work = self._retry(slot) or self._in_order(slot)
        if work:
            self._running[slot.name] = work
        return work

    def made(self, cell: Cell) -> None:
        """The reference of a cell is there, or can't be made: those that wait for it need not any more."""
        key = reference(cell)
        _, waiting = self._pending.pop(key, ("", None))
        waiting = self._new.pop(key, None) if waiting is None else waiting
        if waiting:
            self._open[key] = waiting

    def answered(self, slot: Slot, work: Work) -> bool:
        """A slot has run a cell: whether this is the first answer to it, which is the one that counts."""
        if self._running.get(slot.name) == work:
            del self._running[slot.name]
        self.made(work.cell)
        first = work.number not in self._answered
        self._answered.add(work.number)
        self._again = [each for each in self._again if each.number != work.number]
        return first

    def lost(self, slot: Slot, why: str) -> Lost | None:
        """A slot is lost: its cell waits for another, or is given up, which is an answer too."""
        self._slots.pop(slot.name, None)
        self._fresh -= self._opened.pop(slot, None) is False
        work = self._running.pop(slot.name, None)
        if not work:
            return None
        key = reference(work.cell)
        maker, waiting = self._pending.get(key, ("", deque()))
        if maker == slot.name:
            del self._pending[key]
            self._new = {key: waiting, **self._new}
        if work.number in self._answered:
            return None
        reasons = self._reasons.setdefault(work.number, [])
        reasons.append(why)
        work = replace(work, lost=(*work.lost, slot.node))
        if len({*work.lost}) < NODES and work.lost.count(slot.node) < NODES:
            self._again.append(work)
            return None
        self._answered.add(work.number)
        return Lost(work, reasons)

    def _retry(self, slot: Slot) -> Work | None:
        """A cell that was lost, unless this slot's node lost it and another node is there."""
        for work in self._again:
            elsewhere = any(each.node not in work.lost for each in self._slots.values())
            key = reference(work.cell)
            if (slot.node in work.lost and elsewhere) or key in self._pending:
                continue
            self._again.remove(work)
            if key in self._new:
                self._pending[key] = slot.name, self._new.pop(key)
            return work
        return None

    def _in_order(self, slot: Slot) -> Work | None:
        """The first cell of those whose reference is there, or that nobody makes yet: then the slot makes it."""
        kinds = self._open, self._new
        heads = [(waiting[0].number, key, here) for here in kinds for key, waiting in here.items() if waiting]
        if not heads:
            return None
        _, key, here = min(heads, key=lambda head: head[0])
        self._untaken -= 1
        if here is self._new:
            waiting = self._new.pop(key)
            self._pending[key] = slot.name, waiting
            return waiting.popleft()
        work = self._open[key].popleft()
        if not self._open[key]:
            del self._open[key]
        return work


Event = tuple[int, Result | NeverReady] | BaseException
"""What becomes of a cell, or of a batch, with the batch's number; or what ends the run."""


class Driver:
    """What an engine asks and reports, from any thread: a slot is ready, made a reference, has a result, or is lost.

    It alone hands results on, and of several answers to one cell only the first.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.batches = batches
        self.device = batches[0].cells[0].device
        self.schedules = [Schedule(batch.cells, batch.gpus) for batch in batches]
        self._changed = threading.Condition()
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()

    @property
    def left(self) -> int:
        """How many cells have no result yet."""
        return sum(schedule.left for schedule in self.schedules)

    def opened(self, slot: Slot) -> None:
        """There is one more slot for a batch; it will ask for a cell."""
        with self._changed:
            self.schedules[slot.batch].opened(slot)

    def spare(self, slot: Slot) -> bool:
        """Whether a slot's place is of more use to another batch: nothing waits in its own, and much does there."""
        with self._changed:
            return not self.schedules[slot.batch].waiting and any(
                each.waiting > (MOVED * (each.slots + 1) if each.slots else 0) for each in self.schedules
            )

    def ready(self, slot: Slot, wait: float = 0.0) -> Work | None:
        """The next cell of an idle slot; None if there is none within so many seconds, which may change while cells are
        `left`."""
        with self._changed:
            schedule = self.schedules[slot.batch]
            work = schedule.next(slot)
            if not work and schedule.left and wait:
                self._changed.wait(wait)
                work = schedule.next(slot)
            return work

    def made(self, slot: Slot, cell: Cell) -> None:
        """A cell's reference is there."""
        with self._changed:
            self.schedules[slot.batch].made(cell)
            self._changed.notify_all()

    def result(self, slot: Slot, work: Work, entry: Result) -> None:
        """A slot has run its cell."""
        with self._changed:
            if self.schedules[slot.batch].answered(slot, work):
                self.events.put((slot.batch, entry))
            self._changed.notify_all()

    def lost(self, slot: Slot, why: str) -> None:
        """A slot is lost: its cell runs elsewhere, or is `invalid` where that happened too often."""
        with self._changed:
            if lost := self.schedules[slot.batch].lost(slot, why):
                self.events.put((slot.batch, given_up(lost, self.batches[slot.batch].stack.versions)))
            self._changed.notify_all()

    def refused(self, number: int, error: NeverReady) -> None:
        """Nothing can run the cells of a batch."""
        with self._changed:
            if self.schedules[number].left:
                self.schedules[number].drop()
                self.events.put((number, error))
            self._changed.notify_all()

    def failed(self, error: BaseException) -> None:
        """Something else than a cell went wrong, which ends the run."""
        self.events.put(error)


def given_up(lost: Lost, versions: Mapping[str, str]) -> Result:
    """The result of a cell that several nodes lost."""
    judged = Judgement(Outcome.INVALID, Signature.LOST, f"lost {len(lost.reasons)} times: {'; '.join(lost.reasons)}")
    return result(lost.work.cell, judged, Ended([]), versions)
