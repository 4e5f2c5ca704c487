"""What an exploration came to, in numbers that are kept."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from faultline.base.paths import content
from lab.explore.holding import Tally
from lab.explore.search import Search, Stage

FILE = "numbers.json"  # in the folder of an exploration


@dataclass(frozen=True)
class Numbers:
    """Programs, cases that ran, that differ, and that are known by what they do or once they are small; findings;
    planted faults and relations, and how many were seen, or held; and the planted ones by kind and by how they were
    seen, with an empty word for those that weren't. `small` is what the cases came down to that weren't known,
    `by_relation` what became of each relation."""

    seed: int
    minutes: float
    programs: int
    cases: int
    differ: int
    known: int
    findings: int
    silent: int
    planted: int
    planted_seen: int
    related: int
    held: int
    stack: str
    by_kind: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    small: int | None = None
    by_relation: Mapping[str, Tally] = field(default_factory=dict)


def read(folder: Path) -> Numbers:
    """What the exploration of a folder came to; raises OSError or ValueError where it has no such numbers."""
    return msgspec.json.decode(content(folder / FILE), type=Numbers)  # whose errors are ValueErrors


def of(search: Search, seed: int, minutes: float, stack: str) -> Numbers:
    """What a search came to so far."""
    funnel, tallies = search.funnel, search.holding.tallies
    return Numbers(
        seed,
        round(minutes, 1),
        programs=funnel[Stage.PROGRAMS],
        cases=funnel[Stage.RUN],
        differ=funnel[Stage.DIFFER],
        known=funnel[Stage.KNOWN_BY_RESULT] + funnel[Stage.KNOWN_ONCE_SMALL],
        findings=len(search.findings),
        silent=search.silent,
        planted=search.planted.total(),
        planted_seen=search.planted_seen,
        related=sum(tally.pairs for tally in tallies.values()),
        held=sum(tally.held for tally in tallies.values()),
        stack=stack,
        by_kind=search.planted_by_kind,
        small=search.small,
        by_relation=tallies,
    )
