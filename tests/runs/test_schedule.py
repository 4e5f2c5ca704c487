"""The schedule: every cell is answered once, whatever slots are lost, late or gone, and each reference is made once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.runs.driver import Driver
from faultline.runs.schedule import NODES, Schedule, Slot
from tests.support import entries

CELLS = [
    Cell("grpo_lora_no_grad", variant, strategy)
    for variant in ("broken", "explicit_use_reentrant", "enable_input_require_grads")
    for strategy in ("ddp", "zero2", "zero3", "fsdp2")
]
SLOTS = [Slot(f"slot {number}", f"node {number // 2}") for number in range(6)]


class Play:
    """Slots that take, answer, get lost and answer late, as a list of choices says; then all go on to the end."""

    def __init__(self, cells):
        self.schedule = Schedule(cells)
        self.busy, self.late, self.idle = {}, [], [*SLOTS]
        self.answers = Counter()
        self.making = {}
        self.made = set()
        self.given_up = []
        self.fresh = 0

    def take(self, number):
        if not self.idle:
            return
        slot = self.idle.pop(number % len(self.idle))
        work = self.schedule.next(slot)
        if not work:
            self.idle.append(slot)
            return
        variant = work.cell.variant
        if variant not in self.made:
            assert variant not in self.making, "a reference is made by two at a time"
            self.making[variant] = slot
        self.busy[slot] = work

    def answer(self, number):
        if self.busy:
            slot = [*self.busy][number % len(self.busy)]
            work = self.busy.pop(slot)
            self.idle.append(slot)
            self.note(slot, work)

    def lose(self, number):
        if self.busy:
            slot = [*self.busy][number % len(self.busy)]
            work = self.busy.pop(slot)
            if self.making.get(work.cell.variant) == slot:
                del self.making[work.cell.variant]
            lost = self.schedule.lost(slot, "gone")
            if lost:
                assert len(lost.reasons) == NODES
                self.given_up.append(lost.work.number)
                self.answers[lost.work.number] += 1
            self.late.append((slot, work))
            self.fresh += 1
            self.idle.append(Slot(f"new {self.fresh}", slot.node))

    def answer_late(self, number):
        if self.late:
            self.note(*self.late.pop(number % len(self.late)))

    def note(self, slot, work):
        self.making.pop(work.cell.variant, None)
        self.made.add(work.cell.variant)
        self.answers[work.number] += self.schedule.answered(slot, work)

    def finish(self):
        for _ in range(10_000):
            if not self.schedule.left:
                return
            for _ in [*self.idle]:
                self.take(0)
            self.answer(0)
        raise AssertionError(f"{self.schedule.left} cells are never answered")


@given(
    st.integers(0, len(CELLS)),
    st.lists(st.tuples(st.sampled_from(["take", "take", "answer", "lose", "answer_late"]), st.integers(0, 20))),
)
def test_every_cell_is_answered_once(count, choices):
    """Breaks when a cell is lost or doubled, or waits for ever, after whatever happened to the slots."""
    play = Play(CELLS[:count])
    for deed, number in choices:
        getattr(play, deed)(number)
    play.finish()
    assert play.answers == Counter(range(count))


def test_cells_of_one_reference_wait_until_it_is_made():
    """Breaks when slots make the same reference at the same time, or an idle slot waits beside other work."""
    schedule = Schedule(CELLS)
    first, second, third = (schedule.next(slot) for slot in SLOTS[:3])
    assert [work.cell.variant for work in (first, second, third)] == [cell.variant for cell in CELLS[::4]]
    assert schedule.next(SLOTS[3]) is None and schedule.left == len(CELLS)
    assert schedule.answered(SLOTS[0], first)
    assert schedule.next(SLOTS[3]).cell == CELLS[1]


def test_a_lost_cell_goes_to_another_node_if_there_is_one():
    """Breaks when a cell is tried again where it was lost, although another node has room; or nowhere."""
    schedule = Schedule(CELLS[:1])
    for slot in SLOTS[2:]:
        assert schedule.next(slot) is None or slot == SLOTS[2]
    schedule.lost(SLOTS[2], "killed")
    assert schedule.next(Slot("new", SLOTS[2].node)) is None, "this node lost it, and others are there"
    assert schedule.next(SLOTS[4]).lost == (SLOTS[2].node,)
    alone = Schedule(CELLS[:1])
    alone.next(SLOTS[0])
    alone.lost(SLOTS[0], "killed")
    assert alone.next(Slot("new", SLOTS[0].node)), "no other node is there"


def test_a_cell_that_three_nodes_lose_is_invalid_with_the_reasons():
    """Breaks when such a cell is missing in the results, is taken for a pass, or doesn't say what happened."""
    driver = Driver(CELLS[:1], {"trl": "1.16.0"})
    for number in range(NODES):
        slot = Slot(f"{number}", f"node {number}")
        assert driver.ready(slot)
        driver.lost(slot, f"node {number} was killed")
    entry = driver.events.get_nowait()
    assert (entry.outcome, entry.signature) == (Outcome.INVALID, Signature.LOST)
    assert entry.detail == "lost 3 times: node 0 was killed; node 1 was killed; node 2 was killed"
    assert entry.verdict != "expected" and not driver.left


def test_only_the_first_answer_counts():
    """Breaks when a node that was given up answers after all, and the cell is in the results twice."""
    driver = Driver(CELLS[:1], {})
    work = driver.ready(SLOTS[0])
    driver.lost(SLOTS[0], "no word for a minute")
    again = driver.ready(SLOTS[2])
    driver.result(SLOTS[0], work, entries.entry(CELLS[0]))
    driver.result(SLOTS[2], again, entries.entry(CELLS[0]))
    assert driver.events.qsize() == 1 and not driver.left
