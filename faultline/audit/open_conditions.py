"""Conditions that no file decides, and the settings that would decide most of them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from faultline.base.packages import STACK
from faultline.catalogue import Failure
from faultline.catalogue.loading import needs
from faultline.cells.cell import Cell
from faultline.cells.words import command
from faultline.observations import answers, measured
from faultline.observations.answers import Doubt
from faultline.observations.ranges import Range

KEYS = {
    "strategy": "the strategy (an accelerate or DeepSpeed config)",
    "checkpointing": "gradient_checkpointing",
    "precision": "bf16",
    "trainer": "the trainer",
    **{name: f"the version of {name}" for name in STACK},
}
"""The setting that states an axis of the matrix, or a package."""
MOST = 3  # settings that are asked for


@dataclass(frozen=True)
class Open:
    """A condition that isn't decided: the axes, needs or packages that it is about, and what they would have to be.

    It is about nothing if it is in the code, which no file states. The `decide` command settles one about releases
    that are all stated, as their combination was not measured; there is none where one is `too_old` to be run.
    """

    about: tuple[str, ...]
    wanted: str
    decide: str = ""
    too_old: bool = False


def label(name: str) -> str:
    """An axis, need or package as it is shown."""
    return needs()[name].label if name in needs() else name


def key(name: str) -> str:
    """The setting that states an axis, need or package."""
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
    return frozenset(name for each in case if not (each.decide or each.too_old) for name in each.about)


def unmeasured(
    failure: Failure, cell: Cell, why: Doubt, versions: Mapping[str, Range], unused: Collection[str]
) -> Open:
    """The condition that a project's releases leave open, with the command that decides it where all that matter are in
    one version, and none is older than any that was run; `unused` packages don't matter."""
    about, trainer = answers.deciding(failure, cell, versions, why, unused), failure.variant(cell.variant).trainer
    matter = ("transformers", "accelerate", *(("trl",) if trainer != "trainer" else ())) if trainer else ()
    pinned = {name: each.pinned for name, each in versions.items() if each.pinned}
    if not pinned.keys() >= {*about}:
        return Open(about, why.text)
    if old := tuple(name for name, version in pinned.items() if version < measured.oldest(name)):
        return Open(old, why.text, too_old=True)
    if loose := tuple(name for name in matter if name not in pinned and name not in unused):
        return Open(loose, why.text)
    stack = " ".join(f"{name}=={version}" for name, version in pinned.items())
    return Open(about, why.text, command(cell.id, stack))
