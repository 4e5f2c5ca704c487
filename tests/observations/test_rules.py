"""What was recorded of a failure: rules about an older stack expect it, and an answer says where it happens today."""

import pytest

from faultline.catalogue import loading
from faultline.cells import expected
from faultline.observations import measured, store
from faultline.observations.matching import Hints, happens, judge


@pytest.mark.parametrize("stack", measured.named_stacks())
def test_a_rule_about_versions_expects_what_was_recorded(stack):
    """Breaks when a rule with `versions` contradicts the newest run of one of its cells on a stack of stacks/."""
    versions = measured.pins(stack)
    wrong = []
    for failure in loading.failures().values():
        rules = expected.rules(failure)
        for cell, rows in store.rows(failure.name).items():
            runs = [row for row in rows if row.stack == stack]
            rule = expected.first_rule(rules, cell, versions)
            if not runs or not rule or not rule.versions:
                continue
            expectation = expected.expect(rules, cell, versions)
            if expected.verdict(expectation, runs[-1].outcome, runs[-1].signature) != "expected":
                wrong.append(f"{cell.id}: {rule} expects {expectation.outcome}, recorded {runs[-1].did}")
    assert not wrong


def happening(failure, signature):
    return happens(judge(loading.failures()[failure], signature, Hints(frozenset(["fsdp1-full"]))))


def test_a_place_is_named_once_and_without_its_variants():
    """Breaks when the same place stands there for each variant and precision, with the variant's name."""
    for failure in loading.failures().values():
        for signature in failure.errors:
            texts = happening(failure.name, signature)
            assert len({*texts}) == len(texts) and not [text for text in texts if " in broken" in text], texts
    assert happening("fsdp_reference_model", "two-devices") == ["as misplaced (reference-model) under fsdp1-full"]
