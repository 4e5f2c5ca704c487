"""What `check` says of models that have the mechanism of a known failure, or that change themselves."""

import pytest

from faultline.check import findings, known, remarks
from faultline.check.next_steps import next_steps
from faultline.check.tried import tried

pytestmark = pytest.mark.slow


@pytest.fixture
def under(run):
    """The results of a model of mechanisms.py under strategies."""
    return lambda model, *names, **axes: [run(f"mechanisms.py:{model}", name, **axes) for name in names]


@pytest.mark.parametrize(
    ("model", "strategies", "failure"),
    [
        ("gradient_penalty", ("ddp-static-graph", "zero2-small", "zero3", "fsdp1-full", "fsdp2"), "double_backward"),
        ("weight_penalty", ("zero3", "fsdp2"), "penalty_outside"),
        ("codebook", ("zero2", "fsdp2"), "buffers_never"),
        ("method", ("fsdp1-full", "fsdp2"), "fsdp2_method_or_child"),
    ],
)
def test_a_mechanism_is_known_in_whatever_words_it_ends(under, model, strategies, failure):
    """Breaks when somebody's gradient penalty gets no name, because its layers make an error with other words."""
    results = under(model, *strategies)
    assert not any(map(known.fine, results)), [result.outcome for result in results]
    [group] = findings.groups(results)
    assert group.failure.name.startswith(failure) and group.match.sure
    assert any(each.word == "verified" for each in tried(group, results))


@pytest.mark.parametrize("model", ["saliency", "penalty_inside"])
def test_what_is_like_a_mechanism_is_not_taken_for_it(under, model):
    """Breaks when a gradient of inputs, or a penalty where a weight is whole, is taken for the failure."""
    results = under(model, "ddp", "fsdp2")
    facts = findings.facts_of(results)
    assert not facts.double_backward and facts.read_outside == facts.without_root == ()
    assert all(map(known.fine, results)), [result.detail for result in results]


def test_what_each_rank_keeps_of_its_rows_is_named(under):
    """Breaks when a model that keeps something of its first rows differs everywhere, and nobody says why."""
    results = under("cached", "ddp", "zero2")
    [group] = findings.groups(results)
    assert findings.facts_of(results).left_unlike == ("mean",), "a counter is the same on every rank"
    assert any("rows leave another value in mean: ranks keep" in line for line in next_steps(group, results))


def test_what_begins_anew_after_resuming_is_named(under):
    """Breaks when somebody whose model counts its steps has to look for what no checkpoint holds."""
    results = under("warming", "ddp", "fsdp2", life="resumed")
    [group] = findings.groups(results)
    assert findings.facts_of(results).not_saved == ("calls", "seen")
    holds = "a checkpoint holds no attribute of a module, and no buffer with `persistent=False`"
    assert f"{holds}, so calls, seen begin anew" in next_steps(group, results)


def test_a_weight_that_the_model_moves_itself_is_no_frozen_one(under):
    """Breaks when a target network under ZeRO-3 is sent to a failure of parameters that are unfrozen."""
    results = under("target", "ddp", "zero3")
    [group] = findings.groups(results)
    lines = next_steps(group, results)
    assert "the model moves them by itself, without gradients: a rank that has a shard moves a copy, or a part" in lines
    assert not any("unfreeze" in line for line in lines)
    assert "the model moves them by itself" in " ".join(remarks.of_model(findings.facts_of(results)))


def test_what_runs_on_one_rank_is_named(under):
    """Breaks when a branch by the rank's number, which one process never takes, is no part of the answer."""
    results = under("on_one_rank", "ddp-find-unused")
    assert remarks.by_rank(results) == ["extra: run on some ranks only, whatever their rows are"]
    assert remarks.by_rank(under("gradient_penalty", "ddp")) == []


def test_what_ranks_use_by_turns_is_unequal(under):
    """Breaks when ranks of which each uses other layers in a step pass for alike, as all use all in the end."""
    [result] = under("by_turns", "ddp")
    assert result.checked.facts.unequal == ("extra",)
    assert known.recognised(result)[0].failure.name == "ddp_unused_vision_tower"


def test_remedies_of_another_engine_are_no_answer(run):
    """Breaks when somebody under ZeRO-3 reads what helped under FSDP."""
    results = [run("parameters.py:mixed", "zero3")]
    [group] = findings.groups(results)
    assert group.failure.name == "fsdp2_mixed_original_dtype"
    assert tried(group, results) == []
