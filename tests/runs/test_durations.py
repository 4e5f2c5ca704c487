"""How long a run takes: what is said before it starts, and what the first cells make of it."""

import pytest

from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.runs import durations, progress
from faultline.runs.durations import START, about, estimate, expected, likely

CELLS = select(failures(), Selection(failure=("zero3_dummy_loss",)))


@pytest.fixture
def recorded(monkeypatch):
    """Durations that are made up."""
    durations._medians.cache_clear()
    known = {"a/scenario/zero2/w2": 4.0, "b/scenario/zero3/w2": 2.0, "b/scenario/zero3/w4": 9.0}
    monkeypatch.setattr(durations, "recorded", lambda: known)
    yield known
    durations._medians.cache_clear()


def test_a_cell_without_a_record_takes_the_median_of_its_family(recorded):
    cells = [Cell("a", "broken", strategy) for strategy in ("zero2", "zero1", "ddp", "gone")]
    assert likely(cells) == [4.0, 4.0, durations.UNKNOWN, durations.UNKNOWN]


def test_workers_share_the_cells_and_no_run_is_shorter_than_its_longest(recorded):
    cell = Cell("a", "broken", "zero2")
    reference = 2 * durations.UNKNOWN
    assert expected([cell], 8) == START + 4.0 + reference
    assert expected([cell, Cell("a", "broken", "zero2", "reentrant")], 2) == START + (8.0 + reference) / 2
    assert expected([], 2) == 0


def test_the_estimate_names_cells_time_and_workers():
    assert estimate(CELLS, 2) == f"{len(CELLS)} cells, {about(expected(CELLS, 2))} with 2 workers"
    assert estimate(CELLS[:1], 1, 3) == "1 cell in 3 runs, less than a minute with 1 worker"


def test_times_are_said_as_people_do():
    assert {about(seconds) for seconds in (0, 59)} == {"less than a minute"}
    assert [about(seconds) for seconds in (61, 5400, 5460)] == ["about 1 min", "about 90 min", "about 1 h 31 min"]


@pytest.mark.parametrize("slower", [0.5, 1, 3])
def test_the_rest_is_measured_by_what_ran(slower):
    """Breaks when a machine that is three times as slow is promised the recorded time until the end."""
    still = progress.Remaining(CELLS, 2)
    whole, half = expected(CELLS, 2), CELLS[: len(CELLS) // 2]
    share = sum(likely(half)) / sum(likely(CELLS))
    elapsed = slower * (START + (whole - START) * share)
    for cell in half:
        still.without(cell, elapsed)
    assert still.seconds == pytest.approx(slower * (whole - START) * (1 - share))
    for cell in CELLS[len(CELLS) // 2 :]:
        still.without(cell, elapsed)
    assert still.seconds == pytest.approx(0, abs=1e-6)
