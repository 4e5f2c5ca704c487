"""A resumed life is held against the same steps in a row: what a checkpoint loses is found, and a whole one trains."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import claims
from faultline.cells.cell import Cell, own_values
from faultline.cells.selection import Selection, select
from faultline.observations import measured
from faultline.ranks import saved
from faultline.ranks.report import Report
from faultline.runs import oracle, rank_reports, runner
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import Judgement
from lab.proofs import planting
from tests.support.night import sampled

USUAL = [name for name in strategies.usual_names() if name != "single"]
DATA = "data_loader_starts_again"


def resumed(strategy, life="resumed"):
    return replace(planting.cell(planting.FULL, strategy), life=life)


def test_an_id_has_one_form():
    with pytest.raises(UsageError, match="doesn't name straight"):
        Cell.parse("a/b/ddp/off/fp32/w2/straight/cpu")


def lives(failure, *asked):
    return {cell.life for cell in select(failures(), Selection(failure=(failure,), life=asked))}


def test_training_is_resumed_and_resized_where_it_is_asked_for():
    """Breaks when the default matrix resumes what isn't about resuming, or runs what is straight through; or when ZeRO
    is to load what more ranks have saved, or more ranks save than there are rows."""
    assert lives("zero3_dummy_loss") == {"straight"} and lives("zero3_dummy_loss", "resumed") == {"resumed"}
    assert lives(DATA) == {"resumed"} and lives(DATA, "straight") == {"straight"}
    asked = select(failures(), Selection(failure=("zero3_dummy_loss",), life=("resized",), world_size=(1, 2, 4)))
    assert {cell.world_size for cell in asked} == {1, 2} and {cell.saved_by for cell in asked} == {2, 4}
    assert {strategies.family(cell.strategy).order for cell in asked} == {1, 3, 4}


def test_a_claim_of_a_failure_of_resuming_is_about_its_resumed_cells():
    """Breaks when such a claim is untested, or when a straight cell that trains speaks against it."""
    failure = failures()[DATA]
    cell = Cell(DATA, "broken", "ddp", life="resumed")
    assert claims.is_about(failure, failure.claims["skip"], cell)
    assert not claims.is_about(failure, failure.claims["skip"], replace(cell, life="straight"))
    assert measured.usual(replace(cell, world_size=4, precision="bf16")) == cell
    assert own_values(failure, "gone")["life"] == "straight", "a variant that the catalogue has no more"


def ended(random_state):
    return Ended([RankEnd(Report(evidence={"random_state": random_state}))])


def test_another_random_state_is_a_difference_and_a_half_without_a_checkpoint_invalid():
    """Breaks when ranks that draw other numbers after resuming pass, or that never loaded anything."""
    trains = Judgement(Outcome.TRAINS)
    assert runner.resumed(trains, ended("a"), ended("a")) == trains
    assert runner.resumed(trains, ended("a"), ended("b")).signature == "resumed-differs"
    report = Report(evidence={"wrapper": "ResNet", "checkpointing_seen": "off", "bytes_held": 1, "bytes_whole": 1})
    doubts = [rank_reports.unproven(resumed("single"), [report], half) for half in (1, 2)]
    assert "rank 0: nothing was saved" in doubts[0] and "rank 0: it did not resume" in doubts[1]


WHOLE = [(resumed(name), "LOADED_TWICE" if name in USUAL else "") for name in planting.EVERY]
LOADED = {planting.cell(planting.first_training(planting.OF_LOADED, name), name) for name in planting.LOADED}
WHOLE += [(replace(cell, life="resumed"), "") for cell in sorted(LOADED, key=str)]
TRAINER = Cell(DATA, "trainer-skip", "ddp", life="resumed")
OF_TRAINERS = [
    Cell("custom_loss_ignores_num_items", "trainer-num_items", "zero3", life="resumed"),
    Cell("grpo_lora_no_grad", "grpo-enable_input_require_grads", "ddp", life="resumed"),
    replace(TRAINER, strategy="fsdp2", life="resized"),
    Cell("deepspeed_gradient_clipping_omitted", "sft-explicit", "zero2", precision="bf16", life="resumed"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "change"),
    [
        *sampled(WHOLE, 6, lambda cell, _: strategies.family(cell.strategy).order),
        *sampled([(cell, "") for cell in OF_TRAINERS], 2),
    ],
    ids=lambda value: value if isinstance(value, str) else value.id,
)
def test_a_whole_checkpoint_trains_on(run, cell, change):
    """Breaks when an engine's or a trainer's own saving and loading is taken for a fault, its sampling, accumulation
    or bf16; or when new tensors with the same numbers, or random numbers that are put back, count as another state."""
    result = run(cell, change)
    assert result.outcome == "trains", result.detail


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "fault"),
    sampled([(cell, f"{by}_DRAWS_ANEW") for cell in (resumed("ddp"), TRAINER) for by in ("PYTHON", "NUMPY")], 3),
    ids=lambda value: value if isinstance(value, str) else value.id,
)
def test_random_numbers_of_python_and_numpy_go_on(run, cell, fault):
    """Breaks when a rank that augments or shuffles otherwise after it resumed passes, as only torch's state counts."""
    result = run(cell, fault)
    assert result.signature == "resumed-differs" and "random state of rank 0 and 1" in result.detail


LOST = [(name, fault) for name in ("ddp", "zero2", "fsdp2") for fault in (*planting.RESUMING[:3], "LOADED_TWICE")]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "fault"), sampled(LOST, 5))
def test_what_a_trainer_loses_is_caught(run, strategy, fault):
    """Breaks when a trainer that goes on with something else than it saved passes, or one that doesn't is caught."""
    result = run(replace(TRAINER, strategy=strategy), fault)
    assert result.signature == ("" if fault == "LOADED_TWICE" else "resumed-differs"), result.detail


# Checkpoints held against live weights: what is missing, empty, unequal or no longer tied is found and named.

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
WEIGHTS = st.dictionaries(st.text("abc.", min_size=1, max_size=6), SHAPES, min_size=1, max_size=4).map(
    lambda shapes: {
        name: torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape) for name, shape in shapes.items()
    }
)


def answer_to(live, results, tied=(), precision="fp32"):
    return oracle._checkpoint_faults(saved.held_against(live, results, tied, precision))


@given(WEIGHTS, st.data())
def test_law_a_whole_checkpoint_has_no_fault_and_what_is_spoilt_is_named(live, data):
    """Breaks when a tensor can be missing, empty, misshapen or unequal without being named."""
    assert answer_to(live, {name: tensor.clone() for name, tensor in live.items()}) == ("", "")
    name = data.draw(st.sampled_from(sorted(live)))
    spoil = {
        "missing": None,
        "empty": torch.empty(0),
        "of another shape": torch.zeros(7, 7, 7, 7),
        "off": live[name] * (1 + 1e-5),
    }
    how = data.draw(st.sampled_from(sorted(spoil)))
    results = {key: tensor for key, tensor in {**live, name: spoil[how]}.items() if tensor is not None}
    signature, detail = answer_to(live, results)
    assert signature == ("checkpoint-differs" if how == "off" else "checkpoint-lacks")
    assert {"off": " by 0.001 %"}.get(how, how) in detail and name in detail


def test_a_checkpoint_in_bf16_is_the_rounding_of_its_weights_and_what_is_not_a_number_is_not_equal():
    live = {"a": torch.rand(64) + 1}
    assert answer_to(live, {"a": live["a"].bfloat16()}, precision="bf16") == ("", "")
    assert answer_to(live, {"a": live["a"].bfloat16()})[0] == "checkpoint-differs"
    assert answer_to(live, {"a": live["a"] * float("nan")})[0] == "checkpoint-differs"


def test_weights_that_came_apart_are_told():
    """Breaks when a model whose weights were tied is loaded with two of them, and nobody says so."""
    weight = torch.ones(3)
    for loaded, wanted in ((weight.clone(), "checkpoint-untied"), (weight, "")):
        signature, detail = answer_to({"embed": weight}, {"head": loaded, "embed": weight}, [["embed", "head"]])
        assert signature == wanted and ("head" in detail) == bool(wanted)


def test_files_are_read_without_a_model(tmp_path):
    torch.save({"a": torch.ones(2), "step": 3}, tmp_path / "pytorch_model.bin")
    assert list(saved.contents(tmp_path)) == ["a"]
