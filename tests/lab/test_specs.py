"""Specs and faults as records: sampled, printed, stored; and what is known of each."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.programs import build, fault, refusals, sampling, spec
from lab.programs.spec import VALUES, Spec, blocks

SPECS = st.builds(Spec, seed=st.integers(0, 99), **{name: st.sampled_from(each) for name, each in VALUES.items()})
UNDER = sampling.under()


@given(SPECS, SPECS)
def test_a_spec_is_stored_told_and_printed_as_it_is(made, other):
    """Breaks when a stored spec is another one than was run, results of one are taken for another's, or a person
    reads of a feature that a model doesn't have."""
    assert spec.parse(made.to_json()) == made
    assert (made.digest == other.digest) == (made == other)
    for name in VALUES:
        assert (name in made.words.replace("two passes", "")) or name not in made.features
    assert f"seed {made.seed}" in made.words


@given(st.integers(0, 50), st.integers(0, 500))
def test_a_seed_gives_the_same_case_and_a_fault_that_can_be_stored(seed, number):
    """Breaks when a proof can't be repeated."""
    assert sampling.healthy(seed, number) == sampling.healthy(seed, number)
    case = sampling.faulty(seed, number, UNDER)
    assert case == sampling.faulty(seed, number, UNDER)
    assert case.fault and fault.parse(case.fault.to_json()) == case.fault
    assert any(refusals.injectable(case.spec, case.fault, name) for name in UNDER)


def test_every_value_of_every_feature_and_every_kind_of_fault_is_sampled():
    """Breaks when a feature is left out by those that say nothing together with it."""
    specs = [sampling.healthy(0, number).spec for number in range(800)]
    seen = {name: {getattr(spec, name) for spec in specs} for name in VALUES}
    assert not {name: missing for name in VALUES if (missing := {*VALUES[name]} - seen[name])}
    kinds = [sampling.faulty(0, number, UNDER).fault.kind for number in range(len(fault.KINDS))]
    assert {*kinds} == {*fault.KINDS}


def test_an_error_hides_a_difference():
    """Breaks when a spec that is refused is expected to differ."""
    both = Spec(twice=True, hook="parameter")
    assert {each.outcome for each in refusals.rules_for(both, "fsdp2")} == {"raises"}
    assert refusals.agrees(Spec(), "ddp", "trains", "")
    assert not refusals.agrees(Spec(), "ddp", "raises", "RuntimeError")
    assert not refusals.agrees(Spec(spare=True), "ddp", "raises", "RuntimeError: another one")


def test_faults_are_seeded_only_where_the_weight_is_its_own():
    """Breaks when a fault hits a weight that others share: its name would say less than it seems."""
    choose = random.Random(0)
    for _ in range(200):
        made = sampling.sample(choose)
        names = sampling.weights(made)
        assert len(names) == len({*names})
        assert not (made.frozen == "first" and "first" in names)


# The models that specs become train in one process, and have the names that faults go by.

FEATURES = [(name, value) for name, values in VALUES.items() for value in values]


def backward(spec):
    model, loss, batch = build.program(spec.to_json())
    total = loss(model, batch(0, 0, 2))
    total.backward()
    return model, total


def test_every_feature_trains_in_one_process():
    """Breaks when a proof would blame an engine for a model that doesn't train at all."""
    assert [each for each in FEATURES if not backward(Spec(seed=1, **dict([each])))[1].isfinite()] == []


def test_a_fault_finds_its_weight_in_the_model():
    """Breaks when the sampler names a weight that the model doesn't have, or that gets no gradient."""

    def wrong(spec):
        model, _ = backward(spec)
        for name in sampling.weights(spec):
            linear = model.get_submodule(name)
            if type(linear) is not torch.nn.Linear or not linear.weight.grad.any():
                yield name
        named = {name for name, module in model.named_modules() if isinstance(module, build.Block)}
        yield from named ^ {*blocks(spec)}

    specs = [sampling.sample(random.Random(number)) for number in range(150)]
    assert {spec.words: names for spec in specs if (names := [*wrong(spec)])} == {}
