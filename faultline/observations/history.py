"""What a cell did on each stack that is known of it, by runs and by rules, and whether that is its failure."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from faultline import strategies
from faultline.base.packages import STACK, TODAY
from faultline.base.text import matches
from faultline.catalogue import Change, Failure
from faultline.catalogue.outcomes import SILENT, Did
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.claims import Outcomes
from faultline.observations import measured, ranges, store
from faultline.observations.measured import Place, place
from faultline.observations.store import MeasuredStack


@dataclass(frozen=True)
class Observation:
    """What a cell did on one stack, if that is known, and whether it is its failure; None if it says nothing of that.

    `stack` is what the option --stack takes: a month, a file of stacks/, or `today`; empty for other versions.
    """

    stack: str
    versions: Mapping[str, Version]
    did: Did | None
    shows: bool | None


@functools.cache
def observations_of(failure: Failure, cell: Cell) -> list[Observation]:
    """What a cell did on every stack, the oldest first; each stack once, by the first source that knows of it.

    The first release with the failure, if a search determined it, is one more. A cell in bf16 that does today what its
    twin in fp32 does has the twin's observations beside its own.
    """
    by_versions: dict[frozenset[tuple[str, Version]], Observation] = {}
    for observation in _observe(failure, cell):
        by_versions.setdefault(frozenset(observation.versions.items()), observation)
    known = list(by_versions.values())
    first = turn(failure.history.began, cell)
    if first and not any(o.shows and o.versions.get(first.package) == Version(first.version) for o in known):
        known.append(Observation("", {first.package: Version(first.version)}, None, True))
    packages, none = (package(failure, cell), *STACK), Version("0")

    def age(observation: Observation) -> tuple[list[Version], bool]:
        return [observation.versions.get(name, none) for name in packages], bool(observation.stack)

    return sorted(known, key=age)


def _observe(failure: Failure, cell: Cell) -> Iterator[Observation]:
    """Today by the rules, then runs, the newest of a stack first, then the rules of other stacks."""

    def on(name: str) -> Observation:
        did = measured.outcomes(failure, name)[cell]
        return Observation(name, parsed(measured.pins(name)), did, shows(failure, cell, did))

    today, twin = on(TODAY), replace(cell, precision="fp32")
    yield today
    alike = (cell, twin) if shows(failure, cell, measured.outcomes(failure)[twin]) == today.shows else (cell,)
    monthly = any(each in measured.monthly(failure.name) for each in alike)
    for each in dict.fromkeys(alike):
        for row in reversed(store.rows(failure.name).get(each, ())):
            stack = store.stacks()[row.stack]
            name = stack.month if monthly and stack.month else stack.name if stack.named else ""
            shown = shows(failure, cell, row.did)
            if name or shown is not None:  # of a stack without a name, only the errors were recorded
                yield Observation(name, _releases(stack.name), row.did, shown)
    yield from map(on, pinned(failure, cell))
    if failure.reported and reported_in(failure, cell):
        there = on(failure.reported.stack)
        yield there if there.shows else replace(there, did=None, shows=True)


@functools.cache
def _releases(stack: str) -> Mapping[str, Version]:
    return parsed(store.stacks()[stack].versions)


def package(failure: Failure, cell: Cell) -> str:
    """The library in which a cell goes wrong."""
    variant = failure.variant(cell.variant)
    of_trainer = {"": strategies.package(cell.strategy), "trainer": "transformers"}
    return variant.package or of_trainer.get(variant.trainer, "trl")


def pinned(failure: Failure, cell: Cell) -> list[str]:
    """The stacks of stacks/ on which a run held a cell against its rules.

    They are the ones that the failure names: for all cells if they are a pair, else for the cells of rules with
    versions.
    """
    upgrades = [claim.swap["stack"] for claim in failure.claims.values() if "stack" in claim.swap]
    both = [failure.reported.stack, failure.reported.good] if failure.reported else []
    ruled = any(rule.versions and expected.about(rule, cell) for rule in expected.rules(failure))
    named = dict.fromkeys((*both, *upgrades)) if ruled or all(both) else {}
    return [stack for stack in named if stack not in ("", TODAY)]


def reported_in(failure: Failure, cell: Cell) -> bool:
    """Whether a failure was reported in a cell."""
    place = failure.reported.place.items() if failure.reported else ()
    return bool(place) and all(getattr(cell, axis) == value for axis, value in place)


@functools.cache
def _silent(failure: Failure, variant: str) -> frozenset[Did]:
    """The outcomes without an error that are the failure in a variant, by the rules of every stack."""
    names = {TODAY, *(stack for cell in measured.outcomes(failure) for stack in pinned(failure, cell))}
    names |= {failure.reported.stack} if failure.reported else set()
    ruled = (item for name in names for item in measured.by_rules(failure, name).items())
    return frozenset(did for cell, did in ruled if cell.variant == variant and did[0] in SILENT)


def shows(failure: Failure, cell: Cell, did: Did) -> bool | None:
    """Whether what a broken cell did is the failure; None for what says nothing of it, such as another error.

    An outcome without an error is the failure if a rule says so of the same variant: another variant's may have
    another cause.
    """
    outcome, signature = did
    if signature in failure.also_raises:
        return False
    if outcome == "raises":
        return True if signature in failure.errors else None
    if did in _silent(failure, cell.variant):
        return True
    return False if outcome == "trains" else None


def turn(turns: Iterable[Change], cell: Cell) -> Change | None:
    """The first of several turns that is about a cell."""
    return next((t for t in turns if all(matches(getattr(cell, axis), (p,)) for axis, p in t.where.items())), None)


def parsed(versions: Mapping[str, str]) -> dict[str, Version]:
    """Versions by package, without local build tags; what is no version is left out."""
    return {name: ranges.public(version) for name, version in versions.items() if ranges.is_version(version)}


def nearest_stack(failure: Failure, versions: Mapping[str, str]) -> tuple[MeasuredStack, Outcomes] | None:
    """The stack on which a failure's broken cells were run that is nearest to these versions, and what they did there.

    None of its packages is newer, and of these stacks the one that shares most versions is nearest, then the newest;
    torch counts for nothing. None if the versions name nothing of the stack, or are older than all.
    """
    asked = {name: version for name, version in versions.items() if name in STACK and name != "torch"}
    if not asked:
        return None

    def nearness(run: tuple[MeasuredStack, Outcomes]) -> tuple[int, list[Version]]:
        there = run[0].versions
        same = sum(there.get(name) == version for name, version in asked.items())
        return same, [Version(there.get(name, "0")) for name in (*asked, *sorted(STACK)) if name != "torch"]

    fits = [run for run in _broken_runs(failure) if all(_upto(run[0].versions, *each) for each in asked.items())]
    return max(fits, key=nearness, default=None)


@store.view
def _broken_runs(failure: Failure) -> list[tuple[MeasuredStack, Outcomes]]:
    """Each stack on which broken cells of a failure were run, today's first, and what they did; impossible left out."""
    stacks = {name: stack for name, stack in store.stacks().items() if stack.named}
    by_stack = {TODAY: measured.outcomes(failure)}
    by_stack |= {name: did for name, did in measured.by_stack(failure.name).items() if name in stacks.keys() - {TODAY}}
    stacks[TODAY] = MeasuredStack(TODAY, measured.pinned())
    ran = {
        name: {cell: did for cell, did in there.items() if cell.broken and did.outcome != "impossible"}
        for name, there in by_stack.items()
    }
    return [(stacks[name], there) for name, there in ran.items() if there]


def disappeared(failure: Failure, signature: str, where: Collection[Place], versions: Mapping[str, str]) -> bool:
    """Whether cells were run in these places on the stack nearest to these versions, and none ended so."""
    near = nearest_stack(failure, versions)
    there = _within(near[1], where) if near else []
    return bool(there) and not any(did.signature == signature for did in there)


def count_outcomes(did: Outcomes, where: Collection[Place]) -> dict[str, int]:
    """How many cells had which outcome, in these places if any was run there."""
    there = _within(did, where) or did.values()
    return dict(Counter(" ".join(each).strip() for each in there).most_common())


def _within(did: Outcomes, where: Collection[Place]) -> list[Did]:
    return [each for cell, each in did.items() if place(cell) in where]


def _upto(versions: Mapping[str, str], name: str, version: str) -> bool:
    try:
        return name not in versions or Version(versions[name]) <= Version(version)
    except InvalidVersion:
        return True
