"""Conditions that no file decides, and the settings that would decide most of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from faultline.base.packages import STACK
from faultline.catalogue.loading import needs

KEYS = {
    "strategy": "the strategy (an accelerate or DeepSpeed config)",
    "checkpointing": "gradient_checkpointing",
    "precision": "bf16",
    "trainer": "the trainer",
    **{name: f"the version of {name}" for name in STACK},
}
"""What people state for an axis of the matrix, or a package."""
MOST = 3  # settings that are asked for


@dataclass(frozen=True)
class Open:
    """A condition that isn't decided: the axes, needs or packages that it is about, and what they would have to be.

    It is about nothing if it is in the code, which no file states. The `decide` command settles one about releases
    that are all stated, as their combination was not measured.
    """

    about: tuple[str, ...]
    wanted: str
    decide: str = ""


def label(name: str) -> str:
    """An axis, need or package as it is shown."""
    return needs()[name].label if name in needs() else name


def key(name: str) -> str:
    """What people state for an axis, need or package."""
    return KEYS.get(name) or needs()[name].key


def deciding(findings: Sequence[Sequence[Sequence[Open]]]) -> list[str]:
    """The settings that would decide most of some findings, each given as the open conditions of its cases.

    One decides a finding if every case of it depends on that.
    """
    left = [frozenset.intersection(*(_about(case) for case in cases)) for cases in findings if cases]
    chosen: list[str] = []
    while len(chosen) < MOST and (counts := Counter(name for each in left for name in sorted(each))):
        name, _ = counts.most_common(1)[0]
        chosen.append(name)
        left = [each for each in left if name not in each]
    return chosen


def _about(case: Sequence[Open]) -> frozenset[str]:
    return frozenset(name for condition in case if not condition.decide for name in condition.about)
