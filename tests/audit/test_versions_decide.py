"""What audit says of releases: certain only where all that were measured and may be meant show it, and no version is
asked for that is stated."""

import json

import pytest

from faultline.audit.conditions import findings
from faultline.audit.project import Project
from faultline.audit.undecided import deciding
from faultline.audit.wording import undecided
from faultline.base.packages import TODAY
from faultline.catalogue.loading import failures
from faultline.observations import history, measured, ranges, releases
from faultline.projects.documents import Place

OLD = {"trl": "0.15.2", "transformers": "4.49.0", "accelerate": "1.4.0", "peft": "0.14.0", "deepspeed": "0.17.0"}
ODD = {"trl": "1.16.0", "transformers": "4.57.1", "accelerate": "1.15.0", "peft": "0.21.2", "deepspeed": "0.19.8"}
GRPO = {"trainer": "grpo", "adapter": "yes", "strategy": "zero2", "checkpointing": "reentrant", "precision": "fp32"}


def project(left, pins):
    versions = {name: ranges.exactly(version) for name, version in pins.items()}
    sources = {name: (Place("a.yaml", 1),) for name in (*left, *versions)}
    return Project({axis: frozenset([value]) for axis, value in left.items()}, versions, sources)


def test_without_versions_certain_takes_every_release_that_was_measured():
    """Versions that nobody says may be any: five of 21 months are not enough."""
    months = {stack.month for stack in measured.months()} - {TODAY}
    wrong = [
        cell.id
        for failure in failures().values()
        for cell in measured.outcomes(failure)
        if failure.variant(cell.variant).broken and releases.possible(failure, cell)
        if releases.state(failure, cell, {})[0] and not _everywhere(history.of(failure, cell), months)
    ]
    assert not wrong


def _everywhere(runs, months):
    usual = [each for each in runs if each.versions.get("torch", measured.pinned()["torch"])]
    showed = {each.stack for each in usual if each.shows}
    return months <= showed


def test_a_sharded_state_dict_is_certain_with_versions_that_showed_it_alone():
    left = {"trainer": "sft", "strategy": "fsdp1-full", "precision": "bf16", "sharded state dict": "yes"}
    for pins, word in (({}, "likely"), ({"transformers": "5.16.1"}, "certain"), ({"transformers": "4.56.0"}, None)):
        matches = {each.failure.name: each.word for each in findings(project(left, pins))}
        assert matches.get("fsdp_sharded_save_model_writes_nothing") == word, pins


@pytest.mark.parametrize("pins", [OLD, ODD], ids=["one is newer than the others", "of different times"])
def test_no_version_is_asked_for_that_is_stated(pins):
    """What was not measured is the combination: it is named, with the command that runs it."""
    known = project(GRPO, {**pins, "torch": measured.pinned()["torch"]})
    matches = findings(known)
    asked = deciding([[case.open for case in each.cases] for each in matches])
    assert not {*asked} & known.versions.keys()
    combined = [(case, each) for one in matches for case in one.cases for each in case.open if each.decide]
    assert combined
    for case, condition in combined:
        assert all(f"{name}=={version}" in condition.decide for name, version in pins.items())
        assert "not measured" in undecided(known, case, condition)


def test_the_release_that_was_not_measured_is_named_and_no_other():
    known = project(GRPO, OLD)
    match = next(each for each in findings(known) if each.failure.name == "grpo_lora_no_grad")
    odd = [condition for condition in match.cases[0].open if condition.decide]
    assert [condition.about for condition in odd] == [("deepspeed",)]
    assert undecided(known, match.cases[0], odd[0]).startswith("deepspeed==0.17.0 with your other releases")


def test_a_package_that_nobody_pinned_is_asked_for():
    loose = {name: version for name, version in OLD.items() if name != "deepspeed"}
    match = next(each for each in findings(project(GRPO, loose)) if each.failure.name == "grpo_lora_no_grad")
    assert not any(condition.decide for case in match.cases for condition in case.open), json.dumps(loose)


def test_an_unknown_torch_is_asked_for_by_its_name():
    """Breaks when a reason that is torch's is said of another package."""
    pins = {name: version for name, version in measured.pinned().items() if name in ("deepspeed", "transformers")}
    known = project({"strategy": "zero2"}, pins | {"torch": "2.1.2"})
    conditions = [each for one in findings(known) for case in one.cases for each in case.open]
    torch = [each for each in conditions if each.wanted.startswith(releases.TORCH)]
    assert torch and all(each.about == ("torch",) for each in torch)
