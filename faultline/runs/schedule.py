"""Which cell goes to which slot: each is answered once, however many slots are lost on the way."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from faultline.cells.cell import Cell, reference

NODES = 3  # that may lose a cell, or times that one may


@dataclass(frozen=True)
class Slot:
    """What runs one cell at a time, such as a worker with a rank server of its own, and the node that it is on.

    Its cells are of one part of the run, such as those on one stack.
    """

    name: str
    node: str = ""
    part: int = 0


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
    there is one.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        # Waiting cells by their reference: that nobody makes yet, that a slot is making, and that is there.
        self._new: dict[Cell, deque[Work]] = {}
        self._pending: dict[Cell, tuple[str, deque[Work]]] = {}
        self._open: dict[Cell, deque[Work]] = {}
        self._again: list[Work] = []
        self._running: dict[str, Work] = {}
        self._slots: dict[str, Slot] = {}
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
        """How many of them no slot has taken yet."""
        return len(self._again) + self._untaken

    def drop(self) -> None:
        """Nothing of it is run any more; what was begun may still answer, and doesn't count."""
        self._new, self._pending, self._open, self._again, self._untaken = {}, {}, {}, [], 0
        self._answered.update(range(self._total))

    def next(self, slot: Slot) -> Work | None:
        """The next cell of an idle slot; None if there is none for it now. While cells are `left`, ask again."""
        self._slots[slot.name] = slot
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
