"""Relations between programs: each holds where all is well, sees a fault that breaks it, and lets rounding pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.catalogue.outcomes import Outcome
from faultline.ranks.report import Sketch
from lab.explore import relations
from lab.explore.case import Case
from lab.programs import drawing
from lab.programs.fault import Fault
from lab.programs.program import Program
from tests.support.night import sampled

# For each relation a case that it says something of.
CASES = {
    "micro-batches": Case(Program.of(3, {"accumulate": 3}), "zero2"),
    "ranks swapped": Case(Program.of(3, {"layers": 3}), "fsdp2"),
    "world sizes": Case(Program.of(3, {"world_size": 4}), "zero3"),
    "recomputation": Case(Program.of(3, {"recompute": "every block"}), "fsdp1-full"),
    "checkpointing": Case(Program.of(3, {"through": "sft", "checkpointing": "reentrant"}), "zero2"),
    "settings": Case(Program.of(3, {"zero.overlap_comm": True, "zero.contiguous_gradients": False}), "zero2"),
    "loss scaled": Case(Program.of(3, {"calls": 2}), "zero3"),
    "reloading": Case(Program.of(3, {"between": "reloading", "optimizer": "adamw"}), "zero3"),
    "evaluation": Case(Program.of(3, {"between": "evaluation"}), "zero3"),
    "a part that nothing uses": Case(Program.of(3, {"spare": True}), "zero2"),
    "frozen without a gradient": Case(Program.of(3, {"spare": True, "layers": 3}), "zero3"),
    "tied by hand": Case(Program.of(3, {"tied": "head", "accumulate": 2}), "fsdp2"),
    "engines": Case(Program.of(3, {"calls": 2}), "fsdp2"),
}


def named(name):
    return next(each for each in relations.RELATIONS if each.name == name)


def tripled(case):
    """A gradient that is three times what it should be."""
    return Fault("factor", "model.layers.0.self_attn.o_proj" if case.program.in_trl else "first", times=3.0)


@pytest.fixture
def sketch(run):
    """What a case does, which has to go wrong only where a fault is planted in it."""

    def sketch(case, fault=None):
        result = run(Case(case.program, case.strategy, fault))
        assert result.outcome == (Outcome.DIVERGES if fault else Outcome.TRAINS), result.detail
        assert result.checked.sketch.weights
        assert bool(result.checked.sketch.gradients) != bool(case.program.trainer)
        return result.checked.sketch

    return sketch


def test_every_relation_names_the_case_to_hold_against():
    """Breaks when a relation is added that no test has seen broken, or holds a case against itself or against one that
    was changed on the way."""
    assert {*CASES} == {each.name for each in relations.RELATIONS}
    for name, case in CASES.items():
        twin = named(name).twin(case)
        assert twin and twin != case and drawing.sensible(twin.program) == twin.program, name
        assert relations.Question(named(name), case) in relations.of(case), name


def test_a_relation_says_nothing_of_others():
    """Breaks when programs are held against each other that are to train in different ways."""
    plain = Case(Program.of(3, {}), "ddp")
    assert {asked.name for asked in relations.of(plain)} == {"ranks swapped", "loss scaled"}
    by_rank = Case(Program.of(3, {"branch": "rank", "optimizer": "adamw"}), "ddp")
    assert not relations.of(by_rank)


# What a relation brings to light though both sides have it.
ON_BOTH_SIDES = {
    "micro-batches": Fault("rows", step=2),
    "ranks swapped": Fault("lost", "first"),
    "world sizes": Fault("lost", "first"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(CASES, 12, lambda name: CASES[name].strategy))
def test_a_relation_holds_sees_a_fault_and_lets_pass_what_it_says_nothing_of(name, sketch):
    """Breaks when a healthy pair is called apart, a fault is not seen, or a relation is blamed for what both have."""
    case, relation = CASES[name], named(name)
    twin = relation.twin(case)
    healthy = sketch(twin)
    assert not relations.broken(sketch(case), healthy, relation)
    faulty = sketch(case, tripled(case))
    assert relations.broken(faulty, healthy, relation)
    assert not relations.broken(faulty, sketch(twin, tripled(case)), relation)
    if fault := ON_BOTH_SIDES.get(name):
        assert relations.broken(sketch(case, fault), sketch(twin, fault), relation)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", sampled(("zero2", "ddp", "fsdp2", "zero3", "fsdp1-full"), 2))
def test_an_engine_logs_the_norm_that_its_gradients_have(strategy, sketch):
    """Breaks when an engine clips by a norm of its own shard alone, or the norm isn't seen at all."""
    seen = sketch(Case(Program.of(3, {"clip": "norm"}), strategy))
    assert len(seen.logged) == len(seen.norms) == 3
    assert not relations.wrong_norm(seen)


@given(st.floats(0.1, 1e3), st.floats(-0.9, 0.9), st.sampled_from([1.0, 2.0]))
def test_rounding_is_no_difference_and_a_lost_rank_is_one(norm, share, times):
    """Breaks when relations blame rounding, or let a difference of a few percent pass."""
    one = (norm, share * norm)
    off = tuple(times * each * (1 + 1e-5) for each in one)
    assert relations.same_measure(one, off, times, norm, "fp32")
    assert not relations.same_measure(one, (times * norm * 1.03, off[1]), times, norm, "fp32")
    assert not relations.same_measure(one, (off[0], off[1] + 0.03 * times * norm), times, norm, "fp32")


def test_small_gradients_are_held_against_the_largest():
    """Breaks when what rounding leaves of nothing is called a difference."""
    one = Sketch({"large": (10.0, 3.0), "none": (1e-6, 1e-7)})
    other = Sketch({"large": (10.0, 3.0), "none": (3e-6, -2e-7)})
    assert not relations.broken(one, other, relations.Relation("any", {}))
    third = Sketch({"large": (10.0, 3.0), "none": (0.1, 0.0)})
    assert relations.broken(one, third, relations.Relation("any", {})) == "gradient of none"
