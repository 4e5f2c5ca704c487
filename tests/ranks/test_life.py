"""A resumed life is held against the same steps in a row: what a checkpoint loses is found, and a whole one trains."""

from dataclasses import replace

import pytest

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import claims
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.maintain import planting
from faultline.observations import measured
from faultline.ranks.report import Report
from faultline.runs import life, proof
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import Judgement
from tests.support.night import sampled

USUAL = [name for name in strategies.listed_as("USUAL") if name != "single"]
DATA = "data_loader_starts_again"


def resumed(strategy, life="resumed"):
    return replace(planting.cell(planting.FULL, strategy), life=life)


def test_an_id_has_one_form():
    with pytest.raises(UsageError, match="runs through"):
        Cell.parse("a/b/ddp/off/fp32/w2/straight/cpu")


def lives(failure, *asked):
    return {cell.life for cell in select(failures(), Selection(failure=(failure,), life=asked))}


def test_training_is_resumed_where_it_is_asked_for():
    """Breaks when the default matrix resumes what isn't about resuming, or runs what is straight through."""
    assert lives("zero3_dummy_loss") == {"straight"} and lives("zero3_dummy_loss", "resumed") == {"resumed"}
    assert lives(DATA) == {"resumed"} and lives(DATA, "straight") == {"straight"}


def test_an_engine_is_resized_only_where_it_promises_that():
    """Breaks when ZeRO is to load what more ranks have saved, or more ranks save than there are rows."""
    asked = select(failures(), Selection(failure=("zero3_dummy_loss",), life=("resized",), world_size=(1, 2, 4)))
    assert {cell.world_size for cell in asked} == {1, 2} and {cell.saved_by for cell in asked} == {2, 4}
    assert {strategies.family(cell.strategy).ORDER for cell in asked} == {1, 3, 4}


def test_a_claim_of_a_failure_of_resuming_is_about_its_resumed_cells():
    """Breaks when such a claim is untested, or when a straight cell that trains speaks against it."""
    failure = failures()[DATA]
    cell = Cell(DATA, "broken", "ddp", life="resumed")
    assert claims.chosen(failure, failure.claims["skip"], cell)
    assert not claims.chosen(failure, failure.claims["skip"], replace(cell, life="straight"))
    assert measured.usual(replace(cell, world_size=4, precision="bf16")) == cell
    assert failure.life("gone") == "straight", "a variant that the catalogue has no more"


def ended(random_state):
    return Ended([RankEnd(Report(evidence={"random_state": random_state}))])


def test_another_random_state_is_a_difference_and_a_half_without_a_checkpoint_invalid():
    """Breaks when ranks that draw other numbers after resuming pass, or that never loaded anything."""
    trains = Judgement(Outcome.TRAINS)
    assert life.resumed(trains, ended("a"), ended("a")) == trains
    assert life.resumed(trains, ended("a"), ended("b")).signature == "resumed-differs"
    report = Report(evidence={"wrapper": "ResNet", "checkpointing_seen": "off", "bytes_held": 1, "bytes_whole": 1})
    doubts = [proof.unproven(resumed("single"), [report], half) for half in (1, 2)]
    assert "rank 0: nothing was saved" in doubts[0] and "rank 0: it did not resume" in doubts[1]


WHOLE = [(name, "LOADED_TWICE" if name in USUAL else "") for name in strategies.names()]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "change"), sampled(WHOLE, 6, lambda name, _: strategies.family(name).ORDER))
def test_a_whole_checkpoint_trains_on(run, strategy, change):
    """Breaks when the engine's own saving and loading is taken for a fault; or when new tensors with the same numbers,
    or random numbers that are put back, count as another state."""
    result = run(resumed(strategy), change)
    assert result.outcome == "trains", result.detail


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sampled(["fsdp2", "ddp", "fsdp1-full"], 3))
def test_a_whole_checkpoint_trains_on_with_fewer_ranks(run, strategy):
    """Breaks when ranks take the shards of others, or when what is lost on the way to fewer ranks passes."""
    result = run(resumed(strategy, life="resized"))
    assert result.outcome == "trains", result.detail
    assert run(resumed(strategy, life="resized"), "MOMENTUM_LOST").signature == "resumed-differs"


TRAINER = Cell(DATA, "trainer-skip", "ddp", life="resumed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "fault"),
    sampled([(cell, fault) for cell in (resumed("ddp"), TRAINER) for fault in planting.DRAWN_ANEW], 3),
    ids=lambda value: value if isinstance(value, str) else value.id,
)
def test_random_numbers_of_python_and_numpy_go_on(run, cell, fault):
    """Breaks when a rank that augments or shuffles otherwise after it resumed passes, as only torch's state counts."""
    result = run(cell, fault)
    assert result.signature == "resumed-differs" and "random state of rank 0 and 1" in result.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    "cell",
    sampled(
        [
            Cell("custom_loss_ignores_num_items", "trainer-num_items", "zero3", life="resumed"),
            Cell("grpo_lora_no_grad", "grpo-enable_input_require_grads", "ddp", life="resumed"),
            Cell("deepspeed_gradient_clipping_omitted", "sft-explicit", "zero2", precision="bf16", life="resumed"),
            replace(TRAINER, strategy="fsdp2", life="resized"),
        ],
        every=2,
    ),
    ids=lambda cell: cell.variant,
)
def test_a_trainer_trains_on(run, cell):
    """Breaks when a trainer's own saving and resuming is taken for a fault: its sampling, accumulation, or bf16."""
    result = run(cell)
    assert result.outcome == "trains", result.detail


LOST = [(name, fault) for name in ("ddp", "zero2", "fsdp2") for fault in (*planting.RESUMING[:3], "LOADED_TWICE")]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "fault"), sampled(LOST, 5))
def test_what_a_trainer_loses_is_caught(run, strategy, fault):
    """Breaks when a trainer that goes on with something else than it saved passes, or one that doesn't is caught."""
    result = run(replace(TRAINER, strategy=strategy), fault)
    assert result.signature == ("" if fault == "LOADED_TWICE" else "resumed-differs"), result.detail
