"""The schedule: every cell is answered once, whatever slots are lost, late or gone, and each reference is made once."""

import contextlib
import threading
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import NeverReady, Uninstallable
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.runs import campaigns, storage
from faultline.runs.campaigns import Campaign
from faultline.runs.driver import MOVED, NODES, Batch, Driver, Schedule, Slot
from faultline.runs.storage import RunFolder
from faultline.stacks import environments
from faultline.stacks.environments import Environment
from faultline.stacks.requests import Stack
from tests.support import entries

CELLS = [
    Cell("grpo_lora_no_grad", variant, strategy)
    for variant in ("broken", "explicit_use_reentrant", "enable_input_require_grads")
    for strategy in ("ddp", "zero2", "zero3", "fsdp2")
]
SLOTS = [Slot(f"slot {number}", f"node {number // 2}") for number in range(6)]


def driven(*parts):
    return Driver([Batch(cells, Environment(f"python of {number}", "")) for number, cells in enumerate(parts)])


class Play:
    """Slots that take, answer, get lost and answer late, as a list of choices says; then all go on to the end."""

    def __init__(self, cells):
        self.schedule = Schedule(cells)
        self.busy, self.late, self.idle = {}, [], [*SLOTS]
        self.answers = Counter()
        self.making, self.made, self.fresh = {}, set(), 0

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


def test_a_slot_makes_room_where_much_waits():
    """Breaks when a slot without cells stays while a stack has none, or leaves for less than its start costs."""
    driver = driven(CELLS[:1], CELLS * 10)
    first, second = Slot("first", "node"), Slot("second", "node", batch=1)
    driver.opened(first)
    assert driver.ready(first) and driver.spare(first), "nobody has the other stack"
    driver.opened(second)
    assert driver.ready(second) and driver.spare(first) == (len(CELLS) * 10 - 1 > 2 * MOVED)
    few = driven(CELLS[:1], CELLS[: MOVED - 10])
    for slot in (first, second):
        few.opened(slot)
        few.ready(slot)
    assert not few.spare(first)


# Several stacks at a time: each has its results, and what one can't run doesn't touch the others.


THREE = CELLS[:3]


class Engine:
    """Stands in for a cluster: a slot for each stack, all at a time. Those in `refuses` run nothing."""

    here = False

    def __init__(self, refuses=(), stops_after=99):
        self.refuses, self.stops_after, self.ran, self.peak, self.given = refuses, stops_after, [], 0, 0

    def room(self):
        return 2

    def workers(self, cells, asked):
        return 1, ""

    def batches(self, batch):
        return [batch]

    @contextlib.contextmanager
    def slots(self, workers, driver):
        self.peak, self.given = max(self.peak, len(driver.batches)), workers
        thread = threading.Thread(target=self.work, args=(driver,))
        thread.start()
        yield
        thread.join()

    def work(self, driver):
        slots = [Slot(f"slot {number}", batch=number) for number in range(len(driver.batches))]
        for slot, batch in zip(slots, driver.batches, strict=True):
            if batch.stack.lock in self.refuses:
                driver.refused(slot.batch, NeverReady("it has no room"))
        while driver.left:
            for slot in slots:
                if work := driver.ready(slot):
                    if len(self.ran) == self.stops_after:
                        driver.failed(KeyboardInterrupt())
                        return
                    self.ran.append((driver.batches[slot.batch].stack.lock, work.cell))
                    driver.result(slot, work, entries.entry(work.cell))


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    """A campaign on an engine; a stack's lock is its name, and none is made on this machine."""

    def lock(stack):
        if stack.name == "gone":
            raise Uninstallable("no such release")
        return f"torch==2.13.0\ntrl=={stack.name}\n"

    monkeypatch.setattr(environments, "resolve", lock)
    monkeypatch.setattr(environments, "make", pytest.fail)
    storage.RunFolder(tmp_path).describe(kind="timeline")
    return lambda engine, workers=2: Campaign(RunFolder(tmp_path), workers, engine=engine)


STACKS = {name: Stack(name) for name in ("1.0", "2.0", "3.0", "gone")}


def test_stacks_are_measured_at_a_time_and_each_has_its_results(campaign):
    """Breaks when stacks wait for each other or mix results, a missing one ends all, or nodes that join stay idle."""
    engine = Engine(["torch==2.13.0\ntrl==2.0\n"])
    measured = campaigns.measure_each(campaign(engine), STACKS, THREE)
    assert engine.peak == 3 and engine.given == 2
    assert [each.name for each in measured] == [*STACKS]
    assert [each.versions.get("trl") for each in measured[::2]] == ["1.0", "3.0"]
    assert [{entry.cell for entry in each.results} for each in measured] == [{*THREE}, set(), {*THREE}, set()]
    assert [each.unusable for each in measured] == ["", "it has no room", "", "no such release"]
    for workers, cells in ((0, THREE), (99, CELLS[3:6])):
        engine = Engine()
        campaigns.measure_each(campaign(engine, workers), STACKS, cells)
        assert engine.given == len(engine.ran) > engine.room(), "it had room for two as the run began"


def test_an_interrupted_measurement_goes_on_with_what_is_left(campaign):
    """Breaks when a cell that has a result runs again, or one that has none doesn't."""
    first, second = Engine(stops_after=4), Engine()
    with pytest.raises(KeyboardInterrupt) as stopped:
        campaigns.measure_each(campaign(first), STACKS, THREE)
    assert "4 of 9 cells ran" in stopped.value.__notes__[0] and "--resume goes on" in stopped.value.__notes__[0]
    measured = campaigns.measure_each(campaign(second), STACKS, THREE)
    assert len(first.ran) == 4 and len(second.ran) == 5 and not {*first.ran} & {*second.ran}
    assert all(len(each.results) == 3 for each in measured[:3])


def test_an_engine_of_one_stack_takes_them_in_their_order(campaign, monkeypatch):
    """Breaks when the pool of this machine is given two stacks at a time."""
    seen = []
    monkeypatch.setattr(campaigns, "measure", lambda campaign, name, stack, cells: seen.append(name))
    engine = Engine()
    engine.here = True
    campaigns.measure_each(replace(campaign(engine)), STACKS, THREE)
    assert seen == [*STACKS]
