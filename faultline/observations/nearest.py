"""What was measured on the stack that is nearest to somebody's versions."""

import functools
from collections import Counter
from collections.abc import Collection, Mapping

from packaging.version import InvalidVersion, Version

from faultline.base.packages import STACK, TODAY
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.observations import measured, store
from faultline.observations.measured import Place, place
from faultline.observations.store import Stack

Runs = Mapping[Cell, Did]
"""What broken cells did on one stack."""


def nearest(failure: Failure, versions: Mapping[str, str]) -> tuple[Stack, Runs] | None:
    """The stack on which a failure's broken cells were run that is nearest to these versions, and what they did there.

    None of its packages is newer, and of these stacks the one that shares most versions is nearest, then the newest;
    torch counts for nothing. None if the versions name nothing of the stack, or are older than all.
    """
    asked = {name: version for name, version in versions.items() if name in STACK and name != "torch"}
    if not asked:
        return None

    def nearness(run: tuple[Stack, Runs]) -> tuple[int, list[Version]]:
        there = run[0].versions
        same = sum(there.get(name) == version for name, version in asked.items())
        return same, [Version(there.get(name, "0")) for name in (*asked, *sorted(STACK))]

    fits = [run for run in runs(failure) if all(_upto(run[0].versions, *each) for each in asked.items())]
    return max(fits, key=nearness, default=None)


@functools.cache
def runs(failure: Failure) -> list[tuple[Stack, Runs]]:
    """Each stack on which broken cells of a failure were run, today's first, and what they did; impossible left out."""
    stacks = {name: stack for name, stack in store.stacks().items() if stack.named}
    stacks[TODAY] = Stack(TODAY, measured.pinned())
    known = [(TODAY, cell, did) for cell, did in measured.outcomes(failure).items()]
    for cell, rows in store.rows(failure.name).items():
        known += [(row.stack, cell, row.did) for row in rows if row.stack in stacks and row.stack != TODAY]
    by_stack: dict[str, dict[Cell, Did]] = {}
    for name, cell, did in known:
        if cell.broken:
            by_stack.setdefault(name, {})[cell] = did
    ran = {
        name: {cell: did for cell, did in there.items() if did.outcome != "impossible"}
        for name, there in by_stack.items()
    }
    return [(stacks[name], there) for name, there in ran.items() if there]


def disappeared(failure: Failure, signature: str, where: Collection[Place], versions: Mapping[str, str]) -> bool:
    """Whether cells were run in these places on the stack nearest to these versions, and none ended so."""
    near = nearest(failure, versions)
    there = _within(near[1], where) if near else []
    return bool(there) and not any(did.signature == signature for did in there)


def then(did: Runs, where: Collection[Place]) -> dict[str, int]:
    """How many cells had which outcome, in these places if any was run there."""
    there = _within(did, where) or did.values()
    return dict(Counter(" ".join(each).strip() for each in there).most_common())


def _within(did: Runs, where: Collection[Place]) -> list[Did]:
    return [each for cell, each in did.items() if place(cell) in where]


def _upto(versions: Mapping[str, str], name: str, version: str) -> bool:
    try:
        return name not in versions or Version(versions[name]) <= Version(version)
    except InvalidVersion:
        return True
