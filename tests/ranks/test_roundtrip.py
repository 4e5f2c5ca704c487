"""Checkpoints held against live weights: what is missing, empty, unequal or no longer tied is found and named."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from faultline.ranks import observer, saved
from faultline.runs import oracle

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


@pytest.mark.parametrize("apart", [True, False])
def test_weights_that_came_apart_are_told(apart):
    """Breaks when a model whose weights were tied is loaded with two of them, and nobody says so."""
    weight = torch.ones(3)
    results = {"head": weight.clone() if apart else weight, "embed": weight}
    signature, detail = answer_to({"embed": weight}, results, [["embed", "head"]])
    assert (signature == "checkpoint-untied") == apart
    assert ("head" in detail) == apart


def test_ties_are_found():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2, bias=False), "b": torch.nn.Linear(2, 2, bias=False)})
    assert observer.tied(model) == []
    model["b"].weight = model["a"].weight
    assert observer.tied(model) == [["a.weight", "b.weight"]]


def test_files_are_read_without_a_model(tmp_path):
    torch.save({"a": torch.ones(2), "step": 3}, tmp_path / "pytorch_model.bin")
    assert list(saved.contents(tmp_path)) == ["a"]
