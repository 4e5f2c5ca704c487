"""Blessing: rules that give back what was observed, few of them, and nothing lost that somebody noted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline import strategies
from faultline.base import packages
from faultline.base.axes import CHECKPOINTING, DEVICES, PRECISIONS
from faultline.base.errors import UsageError
from faultline.base.paths import REPROS
from faultline.catalogue import Failure, Variant
from faultline.catalogue.loading import failures
from faultline.cells import selection
from faultline.cells.cell import WORLD_SIZES, Cell
from faultline.cells.expected import HEADER, Rule, expect, first_rule, holds, load, on_cpu, ruled, to_toml, verdict
from faultline.maintain.bless import bless, difference, refuse
from tests.support import entries

VARIANTS = ("broken", "repaired", "grpo-broken")
STRATEGIES = ("ddp", "zero2", "zero3", "zero3-offload", "fsdp2")
RESULTS = (("trains", ""), ("raises", "a"), ("raises", "b"), ("hangs", "no-progress"), ("impossible", ""))
FAILURE = Failure(
    "", "", "", {"a": "a", "b": "b"}, tuple(map(Variant, (*VARIANTS, "grpo-repaired"))), {}, name="example"
)
CELLS = [Cell("example", *place) for place in product(VARIANTS, STRATEGIES, CHECKPOINTING)]
WIDE = [
    replace(cell, precision=precision, world_size=world, device=device)
    for cell, precision, world, device in product(CELLS, PRECISIONS, WORLD_SIZES, DEVICES)
]
OLD, NEW = {"trl": "0.19.1"}, {"trl": "1.2.0"}
SINCE, BEFORE, NEWEST = (("trl", ">=1.0"),), (("trl", "<1.0"),), (("trl", ">=1.2"),)


def some(*values):
    return st.lists(st.sampled_from(values), max_size=2, unique=True).map(tuple)


def rule_lists(versions, devices=()):
    failing = st.sampled_from([("raises", ("a",)), ("raises", ("a", "b")), ("hangs", ()), ("trains", ())])
    return st.lists(
        st.builds(
            lambda matches, **others: Rule(outcome=matches[0], signature=matches[1], **others),
            failing,
            variant=some(*VARIANTS, "*broken"),
            strategy=some(*STRATEGIES, "zero3*"),
            checkpointing=some(*CHECKPOINTING),
            device=some(*devices) if devices else st.just(()),
            versions=st.sampled_from(versions),
            record=st.sampled_from(["", "https://example.org/1"]),
            reason=st.sampled_from(["", 'a "reason" \U0001f600']),
        ),
        max_size=5,
    )


OBSERVED = st.dictionaries(st.sampled_from(CELLS), st.sampled_from(RESULTS), max_size=len(CELLS))


@pytest.fixture
def read(tmp_path):
    def read(text):
        file = tmp_path / "expected.toml"
        file.write_text(text, encoding="utf-8")
        return load(file)

    return read


def rules_from(observed):
    """The rules of a failure that had none, after a run of all its cells."""
    return bless(FAILURE, observed, {}, (), observed)


def text_of(rules, cell):
    expectation = expect(rules, cell, {})
    return expectation.outcome, expectation.signatures


def exact(observed):
    return {cell: (outcome, (signature,) if signature else ()) for cell, (outcome, signature) in observed.items()}


@given(st.dictionaries(st.sampled_from(WIDE), st.sampled_from(RESULTS), max_size=24))
@settings(max_examples=30)
@pytest.mark.slow
def test_law_rules_give_back_exactly_what_was_observed(observed):
    rules = rules_from(observed)
    assert {cell: text_of(rules, cell) for cell in observed} == exact(observed)
    assert len(rules) <= len(observed), "more rules than cells"
    assert rules_from(dict(reversed(observed.items()))) == rules, "the order of the results matters"


def painted(strokes):
    """Every cell, with the result of the last stroke that is about it: the kind of overlap that failures show."""
    rules = [replace(rule, outcome=outcome, signature=(signature,)) for rule, (outcome, signature) in strokes]
    matches = {cell: expect(reversed(rules), cell, {}) for cell in CELLS}
    return {cell: (answer.outcome, "".join(answer.signatures)) for cell, answer in matches.items()}


STROKE = st.builds(
    Rule,
    variant=some(*VARIANTS),
    strategy=some(*STRATEGIES),
    checkpointing=some(*CHECKPOINTING),
    outcome=st.just("trains"),
)


@pytest.mark.slow
@given(st.lists(st.tuples(STROKE, st.sampled_from(RESULTS)), min_size=3, max_size=9).map(painted))
def test_law_no_rule_could_be_dropped(observed):
    rules = rules_from(observed)
    assert {cell: text_of(rules, cell) for cell in observed} == exact(observed)
    for i in range(len(rules)):
        fewer = rules[:i] + rules[i + 1 :]
        assert {cell: text_of(fewer, cell) for cell in observed} != exact(observed), f"rule {i + 1} says nothing"


def stated(expectation):
    """An expectation without what it rests on: a rule about GPUs may be about cells that weren't run."""
    return replace(expectation, basis="")


@given(OBSERVED, rule_lists([(), SINCE, BEFORE], DEVICES), st.sampled_from(DEVICES), st.sampled_from([(), NEWEST]))
@settings(max_examples=50)
@pytest.mark.slow
def test_law_what_was_run_is_expected_and_what_was_not_stays_as_it_was(observed, rules, device, since):
    observed = {replace(cell, device=device): result for cell, result in observed.items()}
    blessed = bless(FAILURE, observed, NEW, rules, CELLS, since)
    for cell, result in observed.items():
        assert verdict(expect(blessed, cell, NEW), *result) == "expected", f"blessing does not bless {cell.id}"
    assert bless(FAILURE, observed, NEW, blessed, CELLS) == blessed, "blessing twice changes something"
    apart = device != "cpu" or any(rule.device for rule in rules)
    for cell in [replace(cell, device=known) for cell in CELLS for known in (DEVICES if apart else ["cpu"])]:
        if cell not in observed:
            follows = cell.device != "cpu" and first_rule(rules, cell, NEW) == first_rule(rules, on_cpu(cell), NEW)
            before = observed.get(on_cpu(cell), "") if follows else ""
            if before and verdict(ruled(rules, on_cpu(cell), NEW), *before) != "expected":
                assert verdict(ruled(blessed, cell, NEW), *before) == "expected", f"{cell.id} lags behind the CPU"
            else:
                same = stated(ruled(rules, cell, NEW))
                assert stated(ruled(blessed, cell, NEW)) == same, f"{cell.id} was not run and changed"


REPORTED = Rule(device=("cuda",), strategy=("zero3",), outcome="raises", signature=("a",), not_measured=True)


def test_a_rule_of_a_report_is_measured_once_a_cell_on_a_gpu_did_what_it_says():
    """Breaks when what a GPU has borne out keeps its mark, a measured cell makes guesses about others look measured, or
    the report outlives its refutation."""
    zero3, ddp = (next(cell for cell in CELLS if cell.strategy == name) for name in ("zero3", "ddp"))
    cell = replace(zero3, device="cuda")
    [rule] = bless(FAILURE, {cell: ("raises", "a")}, NEW, [REPORTED], CELLS)
    assert rule == replace(REPORTED, not_measured=False)
    for observed in ({replace(ddp, device="cuda"): ("trains", "")}, {zero3: ("trains", "")}):
        assert bless(FAILURE, observed, NEW, [REPORTED], CELLS) == (REPORTED,)
    rules = bless(FAILURE, {cell: ("trains", "")}, NEW, [REPORTED], CELLS)
    assert ruled(rules, cell, NEW).outcome == "trains"
    other = replace(cell, variant="repaired")
    assert ruled(rules, other, NEW) == ruled([REPORTED], other, NEW)
    on_others = bless(FAILURE, {replace(cell, strategy="zero2"): ("raises", "a")}, NEW, [REPORTED], CELLS)
    new = next(rule for rule in on_others if "zero2" in rule.strategy)
    assert not new.not_measured, "what ran just now carries the mark of the report"


@pytest.mark.slow
@given(OBSERVED, rule_lists([(), SINCE]))
@settings(max_examples=50)
def test_law_a_stack_where_fewer_rules_hold_keeps_its_expectations(observed, rules):
    moved, almost = bless(FAILURE, observed, NEW, rules, CELLS, NEWEST), {"trl": "1.1"}
    assert [expect(moved, cell, almost) for cell in CELLS] == [expect(rules, cell, almost) for cell in CELLS]
    blessed = bless(FAILURE, observed, NEW, rules, CELLS)
    for cell in CELLS:
        if cell not in observed or verdict(expect(rules, cell, NEW), *observed[cell]) == "expected":
            assert expect(blessed, cell, OLD) == expect(rules, cell, OLD), f"{cell.id} changed in the older stack"


def full(result):
    """All strategies and modes of three variants, at the default world size."""
    places = product(VARIANTS, strategies.names(), CHECKPOINTING)
    return {cell: result(cell) for cell in (Cell("example", *place) for place in places)}


def test_rules_are_few_patterns_and_an_axis_that_does_not_matter_is_left_out():
    """Breaks when rules are longer than somebody likes to read, or a pattern takes in a cell that trains."""

    def result(cell):
        if cell.variant == "repaired":
            return "trains", ""
        if cell.strategy.startswith("zero3") and cell.checkpointing == "reentrant":
            return "raises", "a"
        return ("hangs", "no-progress") if cell.strategy in ("ddp", "fsdp2") else ("trains", "")

    variant = ("broken", "grpo-broken")
    where = {"strategy": ("zero3*",), "checkpointing": ("reentrant",)}
    assert {*rules_from(full(result))} == {
        Rule(variant=variant, **where, outcome="raises", signature=("a",)),
        Rule(variant=variant, strategy=("ddp", "fsdp2"), outcome="hangs", signature=("no-progress",)),
    }
    fails = ("zero3", "zero3-offload", "zero3-offload-param")
    [rule] = rules_from(full(lambda cell: ("raises", "a") if cell.strategy in fails else ("trains", "")))
    assert rule.strategy == ("zero3", "zero3-offload*")
    [rule] = rules_from(full(lambda cell: ("raises", "a") if cell.strategy != "zero2" else ("trains", "")))
    assert rule == Rule(strategy=rule.strategy, outcome="raises", signature=("a",)) and len(rule.strategy) <= 10


@pytest.mark.slow
def test_rules_made_anew_say_the_same_and_are_hardly_more():
    """Breaks when expected.toml, made from a whole run of the matrix, is longer than somebody likes to read."""
    stack, number, before = packages.versions(), 0, 0
    for name, failure in failures().items():
        rules = load(REPROS / name / "expected.toml")
        cells = selection.select(failures(), selection.Selection(failure=(name,)))
        expected = {cell: expect(rules, cell, stack) for cell in cells}
        observed = {cell: (answer.outcome, (*answer.signatures, "")[0]) for cell, answer in expected.items()}
        assert bless(failure, observed, stack, rules, cells) == rules
        made = bless(failure, observed, stack, (), cells)
        assert {cell: text_of(made, cell) for cell in cells} == exact(observed), name
        number, before = number + len(made), before + sum(holds(rule, stack) for rule in rules)
    assert number <= 1.2 * before, f"{number} rules instead of {before}"


def test_only_what_the_run_concerns_is_made_anew(read):
    """Breaks when one cell that changed costs the other rules their order."""
    others = [
        '[[rule]]\nvariant = "broken"\nstrategy = "zero*"\noutcome = "raises"\nsignature = "a"',
        '[[rule]]\nprecision = "bf16"\noutcome = "impossible"\nreason = "of a mode that was not run"',
    ]
    wrong = '[[rule]]\nstrategy = "ddp"\noutcome = "hangs"\nsignature = "no-progress"'
    before = "\n".join([HEADER, *(f"{text}\n" for text in (others[0], wrong, others[1]))])
    observed = {cell: ("raises", "b") for cell in CELLS if cell.strategy == "ddp"}
    new = '[[rule]]\nstrategy = "ddp"\noutcome = "raises"\nsignature = "b"'
    text = to_toml(bless(FAILURE, observed, NEW, read(before), CELLS))
    shown = difference(before, text, "repros/example/expected.toml")
    assert shown.startswith("--- repros/example/expected.toml\n+++ repros/example/expected.toml (blessed)\n@@")
    assert '-outcome = "hangs"\n' in shown and not difference(text, text, "any")
    assert text == "\n".join([HEADER, *(f"{text}\n" for text in (*others, new))])


def test_notes_follow_a_result_and_other_versions_stay(read):
    other = '[[rule]]\nversions = {trl = "<1.0"}\noutcome = "hangs"'
    before = (
        f"{other}\n\n[[rule]]\nvariant = 'broken'\nstrategy = 'ddp'\nversions = {{ trl = '>=1.0' }}\n"
        "outcome = 'raises'\nsignature = 'a'\nrecord = 'https://example.org/1'\nreason = 'why'\n"
    )
    rules = read(before)
    observed = {cell: ("raises", "a") for cell in CELLS if cell.variant == "broken" and cell.strategy != "fsdp2"}
    (old, *made) = blessed = bless(FAILURE, observed, NEW, rules, CELLS)
    text = to_toml(blessed)
    assert text.startswith(f"{HEADER}\n{other}\n\n[[rule]]\n"), "a rule about other versions was touched"
    assert old == rules[0]
    assert [replace(rule, strategy=()) for rule in made] == [replace(rules[1], strategy=())], "a note got lost"


def test_an_interrupted_run_and_cells_without_evidence_are_refused():
    results = [entries.entry(Cell("example", "broken", "ddp", world_size=n), "invalid") for n in range(5)]
    with pytest.raises(UsageError, match="interrupted"):
        refuse([], finished=False)
    with pytest.raises(UsageError, match=r"invalid cells: .*w0/cpu, .*w1/cpu, .*w2/cpu and 2 more$"):
        refuse(results, finished=True)
    raised = replace(results[0], outcome="raises", signature="other", detail="A: it")
    refuse([replace(raised, signature="a")], finished=True)
    with pytest.raises(UsageError, match=r"w0/cpu raised an error that no signature .* names: A: it"):
        refuse([raised], finished=True)
    another = "RuntimeError: expect_autograd_hooks_ INTERNAL ASSERT FAILED"
    words = r"'static-graph-no-sync' of ddp_static_graph_no_sync: put that under `also_raises`"
    with pytest.raises(UsageError, match=words):
        refuse([replace(raised, detail=another)], finished=True)
