"""What a cell did on each stack that is known of it, by runs and by rules, and whether that is its failure."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from packaging.version import Version

from faultline import strategies
from faultline.base.packages import STACK, TODAY
from faultline.base.text import matches
from faultline.catalogue import Change, Failure
from faultline.catalogue.outcomes import SILENT, Did
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.observations import measured, ranges, store


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
def of(failure: Failure, cell: Cell) -> list[Observation]:
    """What a cell did on every stack, the oldest first; each stack once, by the first source that knows of it.

    The first release with the failure, if a search determined it, is one more. A cell in bf16 that does today what its
    twin in fp32 does has the twin's observations beside its own.
    """
    by_versions: dict[frozenset[tuple[str, Version]], Observation] = {}
    for observation in _known(failure, cell):
        by_versions.setdefault(frozenset(observation.versions.items()), observation)
    known = list(by_versions.values())
    first = turn(failure.history.began, cell)
    if first and not any(o.shows and o.versions.get(first.package) == Version(first.version) for o in known):
        known.append(Observation("", {first.package: Version(first.version)}, None, True))
    packages, none = (package(failure, cell), *STACK), Version("0")

    def age(observation: Observation) -> tuple[list[Version], bool]:
        return [observation.versions.get(name, none) for name in packages], bool(observation.stack)

    return sorted(known, key=age)


def _known(failure: Failure, cell: Cell) -> Iterator[Observation]:
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
    return variant.package or ("trl" if variant.trainer else strategies.package(cell.strategy))


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
    axes = ("variant", "strategy", "checkpointing", "precision")
    return bool(failure.reported) and all(getattr(cell, axis) == getattr(failure.reported, axis) for axis in axes)


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
