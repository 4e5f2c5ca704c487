"""A resumed life is held against the same steps in a row: what a checkpoint loses is found, and a whole one trains."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.cells import cell as cells
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.ranks.report import Report
from faultline.runs import life, oracle, runner
from faultline.runs.oracle import Judgement
from faultline.runs.supervisor import Ended, RankEnd, RankServer

FAULTS = ROOT / "tests" / "support" / "faults.py"
USUAL = [name for name in strategies.listed_as("USUAL") if name != "single"]
SEEN = ("MOMENTUM_LOST", "SCHEDULE_RESTARTED", "RANDOM_STATE_OF_ONE_RANK", "DATA_FROM_THE_START")


def resumed(strategy, checkpointing="off"):
    world = 2 if strategies.distributed(strategy) else 1
    return Cell("zero_double_reduction", "one_call", strategy, checkpointing, world_size=world, life="resumed")


@given(st.sampled_from(cells.LIVES), st.sampled_from(cells.DEVICES), st.sampled_from(cells.WORLD_SIZES))
def test_law_an_id_is_read_back(life, device, world):
    """Breaks when a resumed cell is taken for one that runs through, or an id of before is refused."""
    cell = Cell("a", "b", "ddp", world_size=world, device=device, life=life)
    assert Cell.parse(cell.id) == cell
    assert cell.id.count("/") == (6 if life == "straight" else 7)


def test_an_id_has_one_form():
    with pytest.raises(UsageError, match="runs through"):
        Cell.parse("a/b/ddp/off/fp32/w2/straight/cpu")


def test_training_is_resumed_where_it_is_asked_for():
    """Breaks when the default matrix grows by itself, or `--life resumed` brings trainers, which can't be resumed."""
    assert {cell.life for cell in select(failures(), Selection(failure=("zero3_dummy_loss",)))} == {"straight"}
    asked = select(failures(), Selection(failure=("grpo_lora_no_grad",), life=("resumed",)))
    assert asked and {cell.life for cell in asked} == {"resumed"}
    assert not any(failures()[cell.failure].variant(cell.variant).trainer for cell in asked)


def ended(random_state):
    return Ended([RankEnd(Report(evidence={"random_state": random_state}))])


def test_another_random_state_is_a_difference():
    """Breaks when ranks that draw other numbers after resuming pass."""
    trains = Judgement(oracle.Outcome.TRAINS)
    assert life.resumed(trains, ended("a"), ended("a")) == trains
    assert life.resumed(trains, ended("a"), ended("b")).signature == "resumed-differs"


def test_a_half_that_shows_no_checkpoint_is_invalid():
    """Breaks when ranks that never loaded anything count as resumed."""
    report = Report(evidence={"wrapper": "ResNet", "checkpointing_seen": "off", "bytes_held": 1, "bytes_whole": 1})
    doubts = [oracle.evidence_doubts(resumed("single"), [report], half) for half in (1, 2)]
    assert "rank 0: nothing was saved" in doubts[0] and "rank 0: it did not resume" in doubts[1]


@pytest.fixture(scope="module")
def run():
    with RankServer(sys.executable) as server:
        references = runner.References(server.folder)
        yield lambda cell, change="": runner.run_cell(server, references, cell, change and f"{FAULTS}:{change}")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", strategies.names())
def test_a_whole_checkpoint_trains_on(run, strategy):
    """Breaks when the engine's own saving and loading is taken for a fault."""
    result = run(resumed(strategy))
    assert result.outcome == "trains", result.detail


@pytest.mark.slow
@pytest.mark.parametrize("strategy", USUAL)
@pytest.mark.parametrize("fault", SEEN)
def test_what_a_checkpoint_loses_is_caught(run, strategy, fault):
    """Breaks when training that goes on with something else than was saved passes."""
    result = run(resumed(strategy), fault)
    assert result.outcome == "diverges", result.detail or "not caught"
    if fault != "DATA_FROM_THE_START" or result.finding.first.step > cells.HALF:
        assert result.signature == "resumed-differs" and result.detail.startswith("after resuming: ")
    first = result.finding.first
    assert fault == "RANDOM_STATE_OF_ONE_RANK" or first.step == cells.HALF + 1, "the first step of the second half"
