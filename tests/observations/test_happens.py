"""Where a failure happens today, in the words of an answer."""

from faultline.catalogue.loading import failures
from faultline.observations.matching import Hints, happens, judge

FSDP1 = Hints(frozenset(["fsdp1-full"]))


def happening(failure, signature):
    return happens(judge(failures()[failure], signature, FSDP1))


def test_a_place_is_named_once_and_without_its_variants():
    """Breaks when the same place stands there for each variant and precision, with the variant's name."""
    for failure in failures().values():
        for signature in failure.errors:
            texts = happening(failure.name, signature)
            assert len({*texts}) == len(texts) and not [text for text in texts if " in broken" in text], texts
    assert happening("fsdp_reference_model", "two-devices") == ["as misplaced (reference-model) under fsdp1-full"]
