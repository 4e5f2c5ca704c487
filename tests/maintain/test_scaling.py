"""A replay of recorded durations through the schedule of a cluster."""

import pytest

from faultline.catalogue.loading import failures
from faultline.cells import selection
from faultline.cells.cell import reference
from faultline.cells.selection import Selection
from faultline.maintain import scaling
from faultline.runs import durations

CELLS = selection.select(failures(), Selection(("grpo_lora_no_grad", "zero3_dummy_loss")))


def test_one_slot_takes_the_time_of_all_that_it_does():
    """Breaks when a replay forgets a cell, a reference or the set-up, or counts one twice."""
    replayed = scaling.replay(CELLS, 1, 1)
    named = {reference(cell) for cell in CELLS}
    cells, references = sum(durations.likely(CELLS)), 2 * sum(durations.likely(named))
    assert replayed.seconds == pytest.approx(scaling.MADE + scaling.FIRST + cells + references)
    assert replayed.efficiency == pytest.approx((cells + references) / replayed.seconds)


@pytest.mark.parametrize("slots", [1, 7, 20])
@pytest.mark.parametrize("stacks", [1, 3])
def test_more_slots_are_sooner_done_and_never_better_than_all_of_their_time(slots, stacks):
    """Breaks when slots run cells of a stack that they don't have, a cell runs in no slot at all, or a figure can't be
    measured again."""
    replayed, alone = scaling.replay(CELLS, stacks, slots), scaling.replay(CELLS, stacks, 1)
    assert replayed == scaling.replay(CELLS, stacks, slots)
    assert 0 < replayed.efficiency < 1 and replayed.seconds <= alone.seconds
    assert replayed.seconds * slots >= stacks * sum(durations.likely(CELLS)) + scaling.MADE + scaling.FIRST


@pytest.mark.slow
@pytest.mark.parametrize(("stacks", "slots"), [(2, 20), pytest.param(10, 100, marks=pytest.mark.nightly)])
def test_many_slots_are_busy_nine_tenths_of_the_time(stacks, slots):
    """Breaks when the schedule of a cluster leaves slots idle, or makes an environment for a few cells."""
    every = selection.select(failures(), Selection())
    assert scaling.replay(every, stacks, slots).efficiency >= 0.9
