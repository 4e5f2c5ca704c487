"""Cells on several stacks at a time: each stack has its results, and what one can't run doesn't touch the others."""

import contextlib
import threading
from dataclasses import replace

import pytest

from faultline.base.errors import NeverReady, Uninstallable
from faultline.cells.cell import Cell
from faultline.runs import campaigns, storage
from faultline.runs.campaigns import Campaign
from faultline.runs.schedule import Slot
from faultline.runs.storage import RunFolder
from faultline.stacks import environments
from faultline.stacks.requests import Stack
from tests.support import entries

CELLS = [Cell("grpo_lora_no_grad", "broken", strategy) for strategy in ("ddp", "zero2", "fsdp2")]


class Engine:
    """Stands in for a cluster: a slot for each stack, all at a time. Those in `refuses` run nothing."""

    here = False

    def __init__(self, refuses=(), stops_after=99):
        self.refuses, self.stops_after, self.ran, self.peak, self.given = refuses, stops_after, [], 0, 0

    def room(self):
        return 2

    def workers(self, cells, asked):
        return 1, ""

    def parts(self, part):
        return [part]

    @contextlib.contextmanager
    def slots(self, workers, run, driver):
        self.peak, self.given = max(self.peak, len(driver.parts)), workers
        thread = threading.Thread(target=self.work, args=(driver,))
        thread.start()
        yield
        thread.join()

    def work(self, driver):
        slots = [Slot(f"slot {number}", part=number) for number in range(len(driver.parts))]
        for slot, part in zip(slots, driver.parts, strict=True):
            if part.stack.lock in self.refuses:
                driver.refused(slot.part, NeverReady("it has no room"))
        while driver.left:
            for slot in slots:
                if work := driver.ready(slot):
                    if len(self.ran) == self.stops_after:
                        driver.failed(KeyboardInterrupt())
                        return
                    self.ran.append((driver.parts[slot.part].stack.lock, work.cell))
                    driver.result(slot, work, entries.entry(work.cell))


@pytest.fixture
def campaign(monkeypatch, tmp_path):
    """A campaign on an engine; a stack's lock is its name, and none is made on this machine."""

    def lock(stack):
        if stack.name == "gone":
            raise Uninstallable("no such release")
        return f"torch==2.13.0\ntrl=={stack.name}\n"

    def refuse(lock):
        raise AssertionError("an environment was made here")

    monkeypatch.setattr(environments, "resolve", lock)
    monkeypatch.setattr(environments, "make", refuse)
    storage.RunFolder(tmp_path).describe(kind="timeline")
    return lambda engine, workers=2: Campaign(RunFolder(tmp_path), workers, engine=engine)


STACKS = {name: Stack(name) for name in ("1.0", "2.0", "3.0", "gone")}


def test_stacks_are_measured_at_a_time_and_each_has_its_results(campaign):
    """Breaks when stacks wait for each other, results end in another's folder, or a missing release ends them all."""
    engine = Engine()
    measured = campaigns.measure_each(campaign(engine), STACKS, CELLS)
    assert engine.peak == 3
    assert [each.name for each in measured] == [*STACKS]
    assert [each.versions.get("trl") for each in measured] == ["1.0", "2.0", "3.0", None]
    assert [{entry.cell for entry in each.results} for each in measured] == [{*CELLS}] * 3 + [set()]
    assert measured[-1].unusable == "no such release"


def test_a_stack_that_no_node_can_run_leaves_the_others_alone(campaign):
    """Breaks when a stack whose ranks don't start ends the measurement of every stack."""
    measured = campaigns.measure_each(campaign(Engine(["torch==2.13.0\ntrl==2.0\n"])), STACKS, CELLS)
    assert [each.unusable for each in measured] == ["", "it has no room", "", "no such release"]
    assert len(measured[0].results) == len(measured[2].results) == 3


@pytest.mark.parametrize(("workers", "given"), [(0, 9), (2, 2), (99, 9)])
def test_an_engine_that_may_grow_gets_what_was_asked(campaign, workers, given):
    """Breaks when nodes that join a cluster are never used, for it had room for one slot as the run began."""
    engine = Engine()
    campaigns.measure_each(campaign(engine, workers), STACKS, CELLS)
    assert engine.given == given


def test_an_interrupted_measurement_goes_on_with_what_is_left(campaign):
    """Breaks when a cell that has a result runs again, or one that has none doesn't."""
    first, second = Engine(stops_after=4), Engine()
    with pytest.raises(KeyboardInterrupt) as stopped:
        campaigns.measure_each(campaign(first), STACKS, CELLS)
    assert "4 of 9 cells ran" in stopped.value.__notes__[0] and "--resume goes on" in stopped.value.__notes__[0]
    measured = campaigns.measure_each(campaign(second), STACKS, CELLS)
    assert len(first.ran) == 4 and len(second.ran) == 5 and not {*first.ran} & {*second.ran}
    assert all(len(each.results) == 3 for each in measured[:3])


def test_an_engine_of_one_stack_takes_them_in_their_order(campaign, monkeypatch):
    """Breaks when the pool of this machine is given two stacks at a time."""
    seen = []
    monkeypatch.setattr(campaigns, "measure", lambda campaign, name, stack, cells: seen.append(name))
    engine = Engine()
    engine.here = True
    campaigns.measure_each(replace(campaign(engine)), STACKS, CELLS)
    assert seen == [*STACKS]
