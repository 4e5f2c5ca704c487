"""What was measured on the stack that is nearest to somebody's versions."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from packaging.version import InvalidVersion, Version

from faultline import known, timeline
from faultline.catalogue import Failure
from faultline.matrix import Cell
from faultline.server import STACK
from faultline.stacks import TODAY
from faultline.timeline import Moment

NOTHING = (timeline.NOT_RUN, "impossible")  # what a cell did that says nothing


def nearest(failure: Failure, versions: Mapping[str, str]) -> tuple[Moment, dict[Cell, str]] | None:
    """The stack on which a failure's broken cells were run that is nearest to these versions, and what they did there.

    None of its packages is newer, and then those count first that are the very same; torch counts for nothing. None
    where the versions name nothing of the stack, or are older than all.
    """
    named = {name: version for name, version in versions.items() if name in STACK and name != "torch"}
    if not named:
        return None

    def distance(moment: Moment) -> tuple[Any, ...]:
        same = [name for name, version in named.items() if moment.versions.get(name) == version]
        return len(same), *(Version(moment.versions.get(name, "0")) for name in (*named, *sorted(STACK)))

    fits = [each for each in measured(failure) if all(_upto(each[0].versions, *own) for own in named.items())]
    return max(fits, key=lambda each: distance(each[0]), default=None)


@functools.cache
def measured(failure: Failure) -> list[tuple[Moment, dict[Cell, str]]]:
    """Each stack on which broken cells of a failure were run, today's too, and what they did there."""
    today = {cell: " ".join(told).strip() for cell, told in known.outcomes(failure).items() if cell.broken}
    found = [(Moment(TODAY, known.pinned()), {cell: did for cell, did in today.items() if did not in NOTHING})]
    for line in (known.over_time(), known.ran()):
        own = {Cell.parse(name): did for name, did in line.cells.items() if name.startswith(f"{failure.name}/")}
        for place, moment in enumerate(line.moments):
            there = {cell: did[place] for cell, did in own.items() if cell.broken and did[place] not in NOTHING}
            if there and moment.versions:
                found.append((moment, there))
    return found


def gone(failure: Failure, signature: str, where: Collection[known.Place], versions: Mapping[str, str]) -> bool:
    """Whether cells were run in these places on the stack nearest to these versions, and none ended so."""
    near = nearest(failure, versions)
    there = _within(near[1], where) if near else []
    return bool(there) and not any(told.endswith(f" {signature}") for told in there)


def then(did: Mapping[Cell, str], where: Collection[known.Place]) -> dict[str, int]:
    """How many cells had which outcome, in these places if any was run there."""
    return dict(Counter(_within(did, where) or did.values()).most_common())


def _within(did: Mapping[Cell, str], where: Collection[known.Place]) -> list[str]:
    return [told for cell, told in did.items() if (cell.strategy, cell.checkpointing) in where]


def _upto(versions: Mapping[str, str], name: str, version: str) -> bool:
    try:
        return name not in versions or Version(versions[name]) <= Version(version)
    except InvalidVersion:
        return True
