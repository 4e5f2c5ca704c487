"""A tenth of the proof of `check`: no false alarm at a healthy spec, and every seeded fault caught and named."""

from collections import Counter
from dataclasses import replace

import pytest

from faultline import strategies
from faultline.cells.cell import Cell
from faultline.cells.finding import Difference, Factor, Finding
from faultline.ranks.facts import Facts
from faultline.runs.results import Checked, as_expected
from lab.programs import sampling
from lab.programs.fault import IN_CELLS, KINDS, Fault
from lab.programs.sampling import Case
from lab.programs.spec import Spec
from lab.proofs import planting, trust, trust_matrix
from lab.proofs import trust_judgement as judging
from lab.proofs.trust_judgement import Figures
from tests.support import entries
from tests.support.night import sampled

RARE = (  # hardly ever drawn
    Spec(no_grad="target", state="average"),  # DDP broadcasts no buffers after a forward pass without gradients
    Spec(output="dataclass", frozen="biases", method="model", checkpoint="non-reentrant"),  # hooks see no dataclass
    Spec(block="experts", dtype="complex"),  # of FSDP2's units, the root has only the complex parameter
)
CASES = trust.cases_of(trust.Request(healthy=50, faulty=30))
CASES |= {f"rare-{number}": sampling.case(f"rare-{number}", spec) for number, spec in enumerate(RARE)}
SPOILT, HALVED, FROZEN = Fault("factor", "head", step=2, times=2.0), Fault("loss", times=0.5), Fault("frozen", "head")


DRAWN = sampled(CASES.values(), 9, lambda case: case.fault.kind if case.fault else case.name[:6])


@pytest.mark.slow
@pytest.mark.parametrize("case", DRAWN, ids=lambda case: case.name)
def test_what_is_known_by_construction_is_what_check_says(shared_server, references, tmp_path, case):
    """Breaks when a healthy model is called wrong, or a fault is missed or called something else."""
    run = trust.runs({case.name: case}, tmp_path)
    results = [run(shared_server, references, cell) for cell in trust.cells_of([case], 1)]
    answers = {each.cell.strategy: (judging.judged(case, each), judging.text(each)) for each in results}
    right = {judging.RIGHT, judging.REFUSED}
    wrong = {name: answer for name, answer in answers.items() if answer[0] not in right}
    assert not wrong, f"{case.spec.words}; {case.fault and case.fault.words}"


def entry(outcome="diverges", signature="differs", **values):
    return entries.entry(Cell("made", "model", "ddp"), outcome, signature, **values)


def first(**values):
    return Finding(first=replace(Difference(2, 0, "backward", "head", 1.0, "head.weight"), **values))


@pytest.mark.parametrize(
    ("fault", "result", "worth"),
    [
        (SPOILT, entry(finding=first()), judging.RIGHT),
        (SPOILT, entry("trains", ""), judging.MISSED),
        (SPOILT, entry(finding=first(parameter="first.weight")), judging.MISNAMED),
        (SPOILT, entry(finding=first(step=1)), judging.MISNAMED),
        (SPOILT, entry(finding=first(phase="update")), judging.MISNAMED),
        (SPOILT, entry("raises", "other"), judging.MISNAMED),
        (SPOILT, entry("invalid", "own-fault"), judging.FAULT_OF_OURS),
        (SPOILT, entry("hangs", "no-progress", detail="still running after 120 s"), judging.FAULT_OF_OURS),
        (HALVED, entry(finding=Finding(Factor("gradients", 0.501))), judging.RIGHT),
        (HALVED, entry(finding=Finding(Factor("weights", 0.5))), judging.MISNAMED),
        (FROZEN, entry(signature="unmoved", finding=Finding(unmoved=("head.weight",))), judging.RIGHT),
        (FROZEN, entry(signature="unmoved", finding=Finding(unmoved=("head.bias",))), judging.MISNAMED),
        (None, entry("trains", ""), judging.RIGHT),
        (None, entry("raises", "other", detail="RuntimeError"), judging.FALSE_ALARM),
    ],
)
def test_a_judgement_is_worth_what_is_known(fault, result, worth):
    """Breaks when the proof passes answers that are wrong, which is what it is for."""
    assert judging.judged(Case("made", Spec(), fault), result) == worth


def test_a_refusal_counts_only_in_the_words_of_the_engine_and_names_are_counted(monkeypatch):
    """Breaks when any error of a refused spec passes, or when an engine that trains it by now goes unseen."""
    case = Case("made", Spec(spare=True))
    known = entry("raises", "other", detail="RuntimeError: Expected to have finished reduction in ...")
    assert judging.judged(case, known) == judging.REFUSED
    assert judging.judged(case, entry("raises", "other", detail="RuntimeError")) == judging.OTHERWISE
    assert judging.judged(case, entry("trains", "")) == judging.OTHERWISE
    # A failure that every such model meets has its name in `check`, or a figure shows that it lost it.
    words = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    facts = (Facts(model="Made", no_gradient=names) for names in (("spare.weight",), ()))
    named, unnamed = (entry("raises", "other", detail=words, checked=Checked(facts=each)) for each in facts)
    assert judging.called(case, named) == judging.CALLED and judging.called(case, unnamed) == judging.NOT_CALLED
    assert not judging.called(Case("made", Spec()), named), "it is a false alarm"
    assert not judging.called(case, entry("trains", ""))
    figures = Figures(Counter({judging.REFUSED: 2}), Counter(), called=Counter([judging.CALLED, judging.NOT_CALLED]))
    assert ("known failures named", "1 of 2", "") in figures.rows and figures.holds
    # The name of another failure is counted, and no bar is held.
    case = Case("made", Spec(dtype="float64"))
    words = "RuntimeError: mat1 and mat2 must have the same dtype"
    refused = replace(entry("raises", "other", detail=words), cell=Cell("made", "model", "zero2"))
    assert judging.judged(case, refused) == judging.REFUSED
    monkeypatch.setattr(judging, "names_given", lambda entry: {"double_backward_through_shards"})
    assert judging.called(case, refused) == judging.WRONGLY_CALLED
    figures = Figures(Counter({judging.REFUSED: 1}), Counter(), called=Counter([judging.WRONGLY_CALLED]))
    assert ("cells with the name of another failure", "1", "0") in figures.rows and not figures.holds


@pytest.mark.parametrize(
    ("healthy", "faulty", "holds"),
    [
        ({judging.RIGHT: 9, judging.REFUSED: 1}, {judging.RIGHT: 95, judging.MISNAMED: 5}, True),
        ({judging.RIGHT: 9}, {judging.RIGHT: 94, judging.MISNAMED: 6}, False),
        ({judging.RIGHT: 9}, {judging.RIGHT: 99, judging.MISSED: 1}, False),
        ({judging.RIGHT: 9, judging.FALSE_ALARM: 1}, {}, False),
        ({judging.RIGHT: 9, judging.OTHERWISE: 1}, {}, False),
        ({judging.RIGHT: 9, judging.FAULT_OF_OURS: 1}, {}, False),
        ({}, {judging.RIGHT: 99, judging.FAULT_OF_OURS: 1}, False),
    ],
)
def test_the_bars_are_held_or_not(healthy, faulty, holds):
    """Breaks when the proof ends with exit code 0 though a bar is not held."""
    assert Figures(Counter(healthy), Counter(faulty)).holds == holds


FAULT = next(each for each in planting.planted() if each.fault == "STALE_WEIGHTS" and each.cell.strategy == "zero2")
SAME_ROWS = next(each for each in planting.planted() if each.fault == "SAME_ROWS")
WORST = "model.norm.weight (weights, step 3, rank 0)"


@pytest.mark.parametrize(
    ("fault", "result", "worth"),
    [
        (FAULT, entry(worst_parameter=WORST), judging.RIGHT),
        (FAULT, entry(worst_parameter=WORST.replace("3", "2")), judging.MISNAMED),
        (FAULT, entry(signature="unmoved", worst_parameter=WORST), judging.MISNAMED),
        (FAULT, entry("trains", ""), judging.MISSED),
        (FAULT, entry("hangs", "no-progress", detail="still running after 120 s"), judging.FAULT_OF_OURS),
        (None, entry("trains", ""), judging.RIGHT),
        (None, entry(), judging.FALSE_ALARM),
        (None, entry("invalid", "evidence"), judging.FAULT_OF_OURS),
        (SAME_ROWS, entry("invalid", "evidence"), judging.RIGHT),
    ],
)
def test_a_judgement_of_the_matrix_is_worth_what_is_known(fault, result, worth):
    """Breaks when the proof of the oracle passes answers that are wrong."""
    assert trust_matrix.worth(fault, result) == worth
    assert as_expected(trust_matrix.with_worth(fault, result)) == (worth == judging.RIGHT), "what the bar counts"


def test_every_fault_is_planted_in_every_strategy_where_it_can_be():
    """Breaks when a fault is left out of a proof, is run under the name of a healthy cell, or has no Injection."""
    proof = trust_matrix.proof(10, None, seed=0)
    planted = [*planting.planted()]
    assert len(proof.cells) == len({*proof.cells}) == 10 + len(planted)
    assert sum(map(proof.faulty, proof.cells)) == len(planted)
    assert {each.fault for each in planted} <= planting.FAULTS.keys()
    assert {each.kind for each in planting.FAULTS.values()} <= KINDS.keys() | IN_CELLS.keys(), "a rank would have none"
    assert {each.cell.strategy for each in planted} == {*strategies.names()}
    assert {*KINDS} == {case.fault.kind for case in CASES.values() if case.fault}
