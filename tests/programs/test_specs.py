"""Specs and faults as records: sampled, printed, stored, shrunk; and what is known of each."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import UsageError
from faultline.programs import fault, sampling, spec, truth
from faultline.programs.spec import VALUES, Spec

SPECS = st.builds(Spec, seed=st.integers(0, 99), **{name: st.sampled_from(each) for name, each in VALUES.items()})
UNDER = sampling.under()


@given(SPECS)
def test_a_spec_is_read_back_as_it_was_stored(made):
    """Breaks when a stored spec is another one than was run."""
    assert spec.parse(made.to_json()) == made


@given(SPECS, SPECS)
def test_only_equal_specs_have_one_digest(one, other):
    """Breaks when the results of one spec are taken for another's."""
    assert (one.digest == other.digest) == (one == other)


@given(SPECS)
def test_shrinking_ends_at_the_plain_spec(made):
    """Breaks when shrinking goes in circles, or can't take a feature out."""
    for plainer in made.simpler():
        assert weight(plainer) < weight(made)
    while smaller := next(made.simpler(), None):
        made = smaller
    assert not made.features


def weight(made):
    return sum(VALUES[name].index(value) for name, value in made.features.items())


@given(SPECS)
def test_a_spec_is_printed_with_its_features_and_no_others(made):
    """Breaks when a person reads of a feature that a model doesn't have."""
    for name in VALUES:
        assert (name in made.words.replace("two passes", "")) or name not in made.features
    assert f"seed {made.seed}" in made.words


NO_SPECS = ("", "[]", '{"layers": 9}', '{"colour": "red"}', '{"seed": "one"}')
NO_FAULTS = ("", "{}", '{"kind": "hail"}', '{"colour": "red"}')


@pytest.mark.parametrize(
    ("parse", "text"), [*((spec.parse, text) for text in NO_SPECS), *((fault.parse, text) for text in NO_FAULTS)]
)
def test_what_is_no_spec_or_fault_is_refused(parse, text):
    with pytest.raises(UsageError):
        parse(text)


@given(st.integers(0, 50), st.integers(0, 500))
def test_a_seed_gives_the_same_case_and_a_fault_that_can_be_stored(seed, number):
    """Breaks when a proof can't be repeated."""
    assert sampling.healthy(seed, number) == sampling.healthy(seed, number)
    case = sampling.faulty(seed, number, UNDER)
    assert case == sampling.faulty(seed, number, UNDER)
    assert case.fault and fault.parse(case.fault.to_json()) == case.fault
    assert any(truth.injectable(case.spec, case.fault, name) for name in UNDER)


def test_every_value_of_every_feature_and_every_kind_of_fault_is_sampled():
    """Breaks when a feature is left out by those that say nothing together with it."""
    specs = [sampling.healthy(0, number).spec for number in range(800)]
    missing = [
        (name, value) for name in VALUES for value in VALUES[name] if value not in {getattr(s, name) for s in specs}
    ]
    assert not missing
    kinds = [sampling.faulty(0, number, UNDER).fault.kind for number in range(len(fault.KINDS))]
    assert {*kinds} == {*fault.KINDS}


def test_an_error_hides_a_difference():
    """Breaks when a spec that is refused is expected to differ."""
    both = Spec(twice=True, hook="parameter")
    assert {each.outcome for each in truth.known(both, "fsdp2")} == {"raises"}
    assert truth.agrees(Spec(), "ddp", "trains", "")
    assert not truth.agrees(Spec(), "ddp", "raises", "RuntimeError")
    assert not truth.agrees(Spec(spare=True), "ddp", "raises", "RuntimeError: another one")


def test_faults_are_seeded_only_where_the_weight_is_its_own():
    """Breaks when a fault hits a weight that others share: its name would say less than it seems."""
    choose = random.Random(0)
    for _ in range(200):
        made = sampling.sample(choose)
        names = sampling.weights(made)
        assert len(names) == len({*names})
        assert not (made.frozen == "first" and "first" in names)
