"""What is wrong with a cell's numbers: the factor that it is, where it first differs, and what never moves."""

import pytest

from faultline.cells.cell import Cell
from faultline.cells.finding import Factor, Finding
from faultline.ranks.report import Report
from faultline.runs import rank_reports
from tests.support import reports

ORDER = ["", "embed", "layers.0", "layers.1", "head"]
CELL = Cell.parse("check/model/ddp/off/fp32/w4/cpu")


def ranks(*steps):
    """Two ranks: the first did these steps, the second did nothing wrong."""
    return [reports.report(rank=n, steps=each) for n, each in enumerate((steps, [{} for _ in steps]))]


@pytest.mark.parametrize(
    ("steps", "phase", "module", "step"),
    [
        ([{"outputs": {"0 layers.1#1": 0.5, "0 head#1": 0.9}, "bad": ["gradients:head.w"]}], "forward", "layers.1", 1),
        ([{"bad": ["gradients:embed.w", "gradients:layers.1.w", "weights:layers.1.w"]}], "backward", "layers.1", 1),
        ([{"bad": ["weights:embed.w"], "gradients": {}}], "update", "embed", 1),
        ([{"bad": ["weights:embed.w", "weights:head.w"]}], "step", "head", 1),
        ([{}, {"nan": ["gradients:head.w"]}], "backward", "head", 2),
    ],
)
def test_the_first_difference_is_the_first_in_time(steps, phase, module, step):
    """Forward pass before backward pass, in which the last module comes first: a later one only follows."""
    matches = rank_reports.first(ranks(*steps), ORDER)
    assert (matches.phase, matches.module, matches.step, matches.rank) == (phase, module, step, 0)


def test_without_an_order_of_modules_it_is_that_of_their_parameters():
    """Breaks when the matrix, which observes no modules, names the first module of the alphabet, or one for nothing."""
    assert rank_reports.first(ranks({}, {}), ORDER) is None
    weights = dict.fromkeys(("wte.w", "block.w", "norm.w", "a_head.w"), 0.5)
    bad = [f"gradients:{name}" for name in ("wte.w", "norm.w", "block.w")]
    step = {"weights": weights, "gradients": {}, "bad": bad}
    assert rank_reports.first(ranks(step)).module == "norm"


BOTH = ("1 / world size", "1 / accumulation steps")


@pytest.mark.parametrize(
    ("factors", "evidence", "expected"),
    [
        ([{"gradients": 0.25, "weights": 0.25}] * 2, {}, Factor("gradients", 0.25, ("1 / world size",))),
        ([{"weights": 4.001}] * 2, {}, Factor("weights", 4.001, ("world size",))),
        ([{"gradients": 2.0}] * 2, {"micro_batches": 2}, Factor("gradients", 2.0, ("accumulation steps",))),
        ([{"gradients": 0.25}] * 2, {"micro_batches": 4}, Factor("gradients", 0.25, BOTH)),
        ([{"gradients": 0.7}] * 2, {}, Factor("gradients", 0.7)),
        ([{"gradients": 0.25}, {}], {}, None),
        ([{"gradients": 0.25}, {"gradients": 0.5}], {}, None),
    ],
)
def test_a_factor_that_all_ranks_have_is_named(factors, evidence, expected):
    """Breaks when one rank's factor passes for all of them, or a number of the cell isn't recognised."""
    every = [reports.report(rank=n, steps=[{"factors": each}], evidence=evidence) for n, each in enumerate(factors)]
    assert rank_reports.factor(CELL, every) == expected


def test_a_finding_is_said_with_what_it_means():
    """Breaks when a maintainer is told that something differs, and not how."""
    assert Finding(Factor("gradients", 0.5, ("1 / world size",))).words == [
        "every gradient is 0.5 times what it should be (1 / world size)"
    ]
    assert Finding(Factor("weights", 1 / 3)).words == ["every weight moves 0.333 times as far as it should"]
    first = rank_reports.first(ranks({"bad": ["gradients:head.w"], "gradients": {"head.w": 0.5}}), ORDER)
    assert Finding(None, ("a", "b", "c"), 5, first).words == [
        "never moved: a, b, c and 2 more",
        "first differs: step 1, in the backward pass, head (head.w), by 50 %, on rank 0",
    ]
    assert Finding().words == []


OFF = {"bad": ["weights:a.w"]}
STILL = {**OFF, "unmoved": ["a.w"]}


@pytest.mark.parametrize(
    ("steps", "unmoved"),
    [
        ([STILL, STILL, STILL], ("a.w",)),
        ([{}, STILL, STILL], ("a.w",)),  # in the first step the reference doesn't move it either
        ([STILL, OFF, OFF], ()),
        ([OFF, OFF, STILL], ()),
    ],
)
def test_a_weight_that_moves_in_some_step_is_not_said_to_never_move(steps, unmoved):
    """Breaks when a step that one rank left out is called a weight that never moves."""
    assert rank_reports.finding(CELL, ranks(*steps)).unmoved == unmoved


def test_buffers_that_ranks_hold_differently_are_named_with_their_first_step():
    """Breaks when one rank's buffers stand for all, or when a buffer that only some ranks have is left out."""
    one = Report(0, entered=({"a": "1", "b": "1"}, {"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "1"}))
    other = Report(1, entered=({"a": "1", "b": "1"}, {"a": "1", "b": "9"}, {"a": "1", "b": "3"}))
    assert rank_reports.buffers_apart([one, other]) == {"b": 2, "c": 3}
    assert rank_reports.buffers_apart([one]) == {}
