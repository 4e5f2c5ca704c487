"""The schedule: every cell is answered once, whatever slots are lost, late or gone, and each reference is made once."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import NeverReady
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.runs.driver import MOVED, Driver, Need, Part
from faultline.runs.schedule import NODES, Schedule, Slot
from faultline.stacks.environments import Environment
from tests.support import entries

CELLS = [
    Cell("grpo_lora_no_grad", variant, strategy)
    for variant in ("broken", "explicit_use_reentrant", "enable_input_require_grads")
    for strategy in ("ddp", "zero2", "zero3", "fsdp2")
]
SLOTS = [Slot(f"slot {number}", f"node {number // 2}") for number in range(6)]


def driven(*parts):
    return Driver([Part(cells, Environment(f"python of {number}", ""), print) for number, cells in enumerate(parts)])


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


def test_cells_go_in_their_order_whatever_reference_they_share():
    """Breaks when the first regression of an upgrade waits for all cells beside the ones that are to go first."""
    order = [CELLS[number] for number in (0, 4, 1, 8, 5, 2)]
    schedule, slot = Schedule(order), SLOTS[0]
    went = []
    while work := schedule.next(slot):
        went.append(work.cell)
        schedule.answered(slot, work)
    assert went == order


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
    driver = driven(CELLS[:1])
    for number in range(NODES):
        slot = Slot(f"{number}", f"node {number}")
        assert driver.ready(slot)
        driver.lost(slot, f"node {number} was killed")
    number, entry = driver.events.get_nowait()
    assert number == 0
    assert (entry.outcome, entry.signature) == (Outcome.INVALID, Signature.LOST)
    assert entry.detail == "lost 3 times: node 0 was killed; node 1 was killed; node 2 was killed"
    assert entry.verdict != "expected" and not driver.left


def test_a_slot_has_cells_of_its_part_alone():
    """Breaks when a slot is given a cell of another stack than its own, or a result is another part's."""
    driver = driven(CELLS[:2], CELLS[2:4])
    slot = Slot("slot", "node", part=1)
    driver.opened(slot)
    assert driver.needs() == [Need(2, 0, 0), Need(1, 1, 0)], "a slot that starts will take one"
    work = driver.ready(slot)
    driver.result(slot, work, entries.entry(work.cell))
    assert work.cell == CELLS[2] and driver.needs() == [Need(2, 0, 0), Need(1, 1, 0)]
    assert driver.events.get_nowait() == (1, entries.entry(CELLS[2]))


def test_a_slot_makes_room_where_much_waits():
    """Breaks when a slot without cells stays while a stack has none, or leaves for less than its start costs."""
    driver = driven(CELLS[:1], CELLS * 10)
    first, second = Slot("first", "node"), Slot("second", "node", part=1)
    driver.opened(first)
    assert driver.ready(first) and driver.spare(first), "nobody has the other stack"
    driver.opened(second)
    assert driver.ready(second) and driver.spare(first) == (len(CELLS) * 10 - 1 > 2 * MOVED)
    few = driven(CELLS[:1], CELLS[: MOVED - 10])
    for slot in (first, second):
        few.opened(slot)
        few.ready(slot)
    assert not few.spare(first)


def test_a_part_that_nothing_can_run_is_left_out():
    """Breaks when a stack that no node can have ends the others too, or leaves the run waiting for its cells."""
    driver = driven(CELLS[:2], CELLS[2:4])
    slot = Slot("slot", "node")
    driver.opened(slot)
    work = driver.ready(slot)
    driver.refused(0, NeverReady("no node has it"))
    assert driver.left == 2 and driver.ready(slot) is None
    driver.result(slot, work, entries.entry(work.cell))
    number, error = driver.events.get_nowait()
    assert (number, str(error)) == (0, "no node has it") and driver.events.empty(), (
        "it is neither run nor refused twice"
    )
