"""The oracle's judgement on reports made by hand: nothing is called by a name that its ranks did not prove."""

import math
import signal
from dataclasses import asdict, replace

import pytest

from faultline import strategies
from faultline.base import errors, traces
from faultline.catalogue import Failure, outcomes
from faultline.cells import finding
from faultline.cells.cell import STEPS, Cell
from faultline.ranks.report import Deviation, Frame, Raised, error_report
from faultline.runs import oracle, rank_reports
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import judge
from tests.support import reports

CELL = Cell("example", "broken", "ddp", "reentrant")
FAILURE = Failure("", "", "", {"torn": "Torn"}, (), {}, name="example")

SHOWN = {
    "at_fork": {"threads": 1, "cuda_initialised": False},
    "world_size": 2,
    "device": "cpu",
    "checkpointing_set": "reentrant",
    "wrapper": "DistributedDataParallel",
    **asdict(strategies.options("ddp")),
    "bytes_held": 4,
    "bytes_whole": 4,
    "gradients_remain": True,
}
EARLY = {key: SHOWN[key] for key in ("at_fork", "world_size", "device", "checkpointing_set")}
SEEN = {**SHOWN, "checkpointing_seen": "reentrant"}

# One fact that is not what the cell's name says.
WRONG = {
    "strategy": {"wrapper": "Linear"},
    "option": {"static_graph": True},
    "world size": {"world_size": 1},
    "threads": {"at_fork": {"threads": 2, "cuda_initialised": False}},
    "cuda": {"at_fork": {"threads": 1, "cuda_initialised": True}},
    "gpu": {"device": "cuda:0", "gpu_uuid": "GPU-b", "gpus_lent": ["GPU-a", "GPU-c"]},
}
MODES = {"set": {"checkpointing_set": "off"}, "seen": {"checkpointing_seen": "non-reentrant"}}


def report(rank, evidence=SEEN, error="", **changes):
    step = {"gradients": {"w": 1e-6}, "weights": {"w": 2e-6}}
    known = {"rank": rank, "evidence": evidence, "losses": [float(rank)] * STEPS, "digests": ["d"]}
    if error:
        known["error"] = reports.error("Torn", error, at=1.0)
    return reports.report(**{**known, "steps": [step] * STEPS, "compared": ["gradients", "weights"], **changes})


def trained(**changes):
    return Ended([RankEnd(report(0)), RankEnd(report(1, **changes))])


def raised(evidence=SHOWN, peer=SHOWN):
    return Ended([RankEnd(shown=peer), RankEnd(report(1, evidence, "apart"))])


def raising(error):
    ended = raised()
    ended.ranks[1].report.error = error
    return ended


def crashed(evidence=SHOWN, peer=SHOWN):
    return Ended([RankEnd(shown=peer), RankEnd(exit=-signal.SIGABRT, shown=evidence)])


def hung(evidence=SHOWN, peer=SHOWN):
    return Ended([RankEnd(shown=peer), RankEnd(shown=evidence)], hang="all slept")


ENDS = {"raises": (raised, "torn"), "crashes": (crashed, "SIGABRT"), "hangs": (hung, "no-progress")}
every_end = pytest.mark.parametrize("outcome", ENDS)


def outcome_of(ended, cell=CELL):
    judged = judge(cell, FAILURE, ended)
    return str(judged.outcome), judged.signature


@every_end
def test_a_bad_end_is_named_once_its_ranks_have_shown_what_they_ran(outcome):
    """Breaks when a documented failure is invalid although all is proven, or passes where a rank only set up."""
    make, signature = ENDS[outcome]
    assert outcome_of(make()) == (outcome, signature)
    assert outcome_of(make({**SEEN, "checkpointing_set": "off"})) == (outcome, signature), "what was seen is enough"
    assert outcome_of(make(EARLY)) == outcome_of(make({})) == ("invalid", "evidence")
    # A peer may have been cut short by the end of the other; in a hang every rank is at fault.
    assert outcome_of(make(peer=EARLY))[0] == ("invalid" if outcome == "hangs" else outcome)


@every_end
def test_a_bad_end_of_something_else_is_invalid(outcome):
    """Breaks when a failure of another strategy, of one rank or of another mode counts as the cell's."""
    make, _ = ENDS[outcome]
    others = {name: make({**SHOWN, **change}) for name, change in {**WRONG, **MODES}.items()}
    others |= {f"{name} of the peer": make(peer={**SHOWN, **change}) for name, change in WRONG.items()}
    assert not [name for name, ended in others.items() if outcome_of(ended) != ("invalid", "evidence")]


@pytest.mark.parametrize("outcome", ["crashes", "hangs"])
def test_a_model_that_checkpoints_by_itself_may_end_before_it_did(outcome):
    """Breaks when an early hang is a cell without evidence, or passes though it had checkpointed in another mode."""
    make, signature = ENDS[outcome]

    def named(evidence, asked="off"):
        judged = judge(CELL, FAILURE, make({**SHOWN, "checkpointing_set": "off", **evidence}), asked=asked)
        return str(judged.outcome), judged.signature

    assert named({}) == named({"checkpointing_seen": "reentrant"}) == (outcome, signature)
    assert named({"checkpointing_set": "reentrant"}) == (outcome, signature), "what its modules are set to, and it has"
    assert named({}, asked="") == named({"checkpointing_seen": "non-reentrant"}) == ("invalid", "evidence")


def test_a_model_that_checkpoints_by_itself_shows_it_in_its_first_step():
    """Breaks when an error passes for that of a model which checkpoints, and a whole step recomputed nothing."""
    late = Ended([RankEnd(shown=SHOWN), RankEnd(report(1, {**SHOWN, "checkpointing_set": "off"}, "apart"))])
    early = Ended([RankEnd(shown=SHOWN), RankEnd(replace(late.ranks[1].report, steps=()))])
    assert judge(CELL, FAILURE, late, asked="off").outcome == "invalid"
    assert judge(CELL, FAILURE, early, asked="off").outcome == "raises"


def test_an_engine_that_refuses_a_model_was_its_strategys_and_an_error_that_nobody_knows_may_come_early():
    """Breaks when an engine's own refusal to wrap a model is hidden behind `invalid`."""
    refused = {**EARLY, "wrapping": CELL.strategy}
    assert outcome_of(raised(refused, EARLY)) == ("raises", "torn")
    for wrong in ({"wrapping": "zero2"}, {"checkpointing_set": "off"}, {"world_size": 1}):
        assert outcome_of(raised({**refused, **wrong}, EARLY)) == ("invalid", "evidence"), wrong
    unknown = replace(FAILURE, errors={})
    judged = judge(CELL, unknown, raised(EARLY, EARLY))
    assert (judged.outcome, judged.signature) == ("raises", "other")
    wrong = raised({**EARLY, "checkpointing_set": "off"}, EARLY)
    assert judge(CELL, unknown, wrong).outcome == "invalid", "what it did show is not what the cell's name says"


def test_a_death_is_named_by_its_signal_and_its_last_words():
    """Breaks when the out-of-memory killer passes for gloo's abort, or the reason has to be looked up in a log."""
    log = "UserWarning: old\nterminate called\n  what():  [enforce fail at pair.cc:456] 14 vs 10\n\nwarnings.warn(\n"
    ended = Ended([RankEnd(shown=SHOWN), RankEnd(exit=-6, shown=SHOWN, log=log)])
    judged = judge(CELL, FAILURE, ended)
    assert judged.detail == "rank 1 was killed by SIGABRT: what():  [enforce fail at pair.cc:456] 14 vs 10"
    assert outcome_of(Ended([RankEnd(shown=SHOWN), RankEnd(exit=-9, shown=SHOWN)])) == ("crashes", "SIGKILL")
    assert outcome_of(Ended([RankEnd(shown=SHOWN), RankEnd(exit=7, shown=SHOWN)])) == ("crashes", "silent-exit")
    assert traces.signal_name(signal.SIGRTMIN + 1) == f"signal {signal.SIGRTMIN + 1}", "it has no name"
    assert traces.last_words("loading\nwarnings.warn(\n") == ""


def test_a_cell_that_trained_has_to_prove_all_of_it():
    """Breaks when a run passes without evidence, steps or a comparison, or weights don't do where gradients go."""
    assert outcome_of(trained()) == ("trains", "")
    for change in WRONG.values():
        assert outcome_of(trained(evidence={**SEEN, **change})) == ("invalid", "evidence")
    for mode in ("off", "non-reentrant"):
        assert outcome_of(trained(evidence={**SEEN, "checkpointing_seen": mode})) == ("invalid", "evidence")
    assert outcome_of(trained(steps=report(1).steps[1:])) == ("invalid", "evidence")
    none = {**SEEN, "gradients_remain": False}
    assert outcome_of(trained(compared=["weights"])) == ("invalid", "evidence")
    assert outcome_of(trained(compared=["weights"], evidence=none)) == ("trains", "")
    assert outcome_of(trained(compared=[], evidence=none)) == ("invalid", "evidence")


def test_an_error_that_rounding_explains_is_not_the_worst():
    """Breaks when a parameter that is all noise stands for how far a cell is off."""
    noisy = report(1)
    excused = {"gradients": {**noisy.steps[0].gradients, "bias": 1.5}, "rounding": {"gradients:bias": 1.2}}
    noisy.steps[0] = replace(noisy.steps[0], **excused)
    judged = judge(CELL, FAILURE, Ended([RankEnd(report(0)), RankEnd(noisy)]))
    assert (judged.outcome, judged.worst_parameter) == ("trains", "w (weights, step 1, rank 0)")
    assert judged.relative_error == 2e-6


def test_equal_losses_are_of_the_same_rows_unless_the_rows_or_the_losses_say_otherwise():
    """Breaks when a loss that is NaN, or reduced before backward, is taken for two ranks with the same rows."""

    def both(loss, rows=("", ""), **changes):
        each = ({**SEEN, "rows": row} if row else SEEN for row in rows)
        return Ended([RankEnd(report(n, shown, losses=[loss] * STEPS, **changes)) for n, shown in enumerate(each)])

    step = {"gradients": {}, "weights": {}, "bad": ["w"], "unmoved": [], "nan": ["w"], "rounding": {}}
    assert outcome_of(both(math.nan, steps=[step] * STEPS)) == ("diverges", "nan")
    assert outcome_of(both(1.0)) == outcome_of(both(1.0, ("a", "a"))) == ("invalid", "evidence")
    assert outcome_of(both(1.0, ("a", "b"))) == ("trains", "")


WHOLE = {"wrapper": "Linear", "bytes_held": 4, "bytes_whole": 4, "devices": ["cpu"], "training": False}


@pytest.mark.parametrize(
    ("second", "shown", "fault"),
    [
        (WHOLE, {"device": "cpu"}, "holds all 4 bytes of the second model"),
        (WHOLE | {"bytes_held": 2}, {"device": "cpu"}, None),
        (WHOLE | {"bytes_held": 2}, {"device": "cuda:0"}, "keeps the second model on"),
        (WHOLE | {"bytes_held": 2}, {"device": "cuda:0", "offload_param": True}, None),
        (WHOLE, {"device": "cuda:0", "offload_param": True}, "holds all 4 bytes of the second model"),
    ],
)
def test_a_second_model_must_be_placed_as_the_trained_one_is(second, shown, fault):
    """Breaks when a teacher that is whole or on another device passes, or one that is sharded or offloaded doesn't."""
    shown = SEEN | {"second": second, "bytes_held": 2} | shown
    faults = rank_reports.placement_faults([report(0, shown)])
    assert len(faults) == bool(fault) and all(fault in answer for answer in faults)
    assert not rank_reports.placement_faults([report(0, shown | {"bytes_held": 4, "device": "cpu"})]), (
        "nothing is sharded"
    )


def test_a_trainer_that_cannot_be_built_proves_its_strategy_by_what_accelerate_was_told():
    """Breaks when an error of a trainer's constructor counts under any name, or under none."""
    zero3 = Cell("example", "broken", "zero3", "off")
    early = {key: value for key, value in EARLY.items() if key != "checkpointing_set"}
    for stage, outcome in ((3, "raises"), (2, "invalid")):
        evidence = {**early, "prepared": {"distributed_type": "DEEPSPEED", "zero_stage": stage}}
        assert judge(zero3, FAILURE, raised(evidence, early)).outcome == outcome, stage
    assert judge(zero3, FAILURE, raised({**early, "prepared": {}}, early)).outcome == "invalid"


def test_a_fault_of_this_suite_is_no_outcome_of_a_model():
    """Breaks when a crash in the comparison is taken for an error that somebody's model raises."""
    ended = raised()
    failed = ended.ranks[1].report
    failed.error = replace(failed.error, fault="compare.py:95 in digest")
    judged = judge(CELL, FAILURE, ended)
    assert (judged.outcome, judged.signature) == ("invalid", outcomes.Signature.OWN_FAULT)
    assert judged.detail == "a fault of Faultline, not of the model: compare.py:95 in digest: Torn: apart"
    failed.error = replace(failed.error, message="Connection closed by peer")
    assert judge(CELL, FAILURE, ended).outcome == "raises", "a peer that is gone can meet anybody"


def test_an_error_is_known_by_its_kind_and_not_by_its_name_or_words():
    """Breaks when somebody's own `Impossible` counts as agreement, or their `CheckFailed` as a check that detects."""
    for kind, outcome in (("impossible", "impossible"), ("error", "raises")):
        ended = raising(reports.error("Impossible", "no such layer", kind=kind))
        assert judge(CELL, FAILURE, ended).outcome == outcome
    failure = replace(FAILURE, errors={"check": "no graph"})
    for error, signature in ((errors.CheckFailed, "check"), (type("CheckFailed", (Exception,), {}), "other")):
        judged = judge(CELL, failure, raising(error_report(error("the loss carries no graph"))))
        assert (judged.outcome, judged.signature) == ("raises", signature)
        assert judged.detail == "CheckFailed: the loss carries no graph"


def test_a_bare_assert_is_named_by_the_line_that_failed():
    frames = (Frame("train.py", 3, "build", "build()"), Frame("train.py", 7, "forward", "assert x.ndim == 2"))
    chain = (Raised("error", "", "AssertionError\n", frames),)
    ended = raising(reports.error("AssertionError", "", chain=chain))
    assert judge(CELL, FAILURE, ended).detail == "AssertionError: assert x.ndim == 2"


def test_what_should_be_zero_is_off_by_no_infinite_share():
    """Breaks when a gradient that should be zero "differs by inf", which nobody can read."""
    assert oracle.differing(Deviation("w", "gradients", 1, 0, math.inf)).startswith("gradient of w should be zero, and")
    assert "inf" not in finding.describe_difference(finding.Difference(1, 0, "forward", "right", "inf"))
    assert "by 50 %" in finding.describe_difference(finding.Difference(1, 0, "forward", "right", 0.5))
