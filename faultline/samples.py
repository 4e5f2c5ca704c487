"""What a cell did on each stack that it ran on: the timeline, the runs on stacks/, and the errors of all others."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from faultline import expectations, known, ranges, runner, timeline
from faultline.catalogue import Failure, Turn
from faultline.matrix import Cell, matches
from faultline.server import STACK
from faultline.stacks import TODAY

Told = tuple[str, str]
"""An outcome and its signature; both empty where only that the failure showed is known."""


@dataclass(frozen=True)
class Sample:
    """What a cell did on one stack, and whether that is its failure; None where it couldn't tell.

    `stack` is what STACK takes: a month of the timeline, a file of stacks/, or `today`; empty where versions are all.
    """

    stack: str
    versions: Mapping[str, Version]
    told: Told
    shows: bool | None


@functools.cache
def of(failure: Failure, cell: Cell) -> list[Sample]:
    """What a cell did, or only today where it ran on nothing else, the oldest stack first.

    Of one stack, a run comes before the rules, which another run was held against, and these before recorded errors.
    The first release with the failure, where a search found that, is one more. A cell in bf16 that does today what its
    twin in fp32 does has the twin's past beside its own.
    """
    twin, told = replace(cell, precision="fp32"), known.outcomes(failure)
    today = Sample(TODAY, parsed(known.pinned()), told[cell], shows(failure, cell, told[cell]))
    alike = (cell, twin) if shows(failure, cell, told[twin]) == today.shows else (cell,)
    ran = [
        (moment.date, parsed(moment.versions), pair(did))
        for each in dict.fromkeys(alike)
        for line in (known.over_time(), known.ran())
        for moment, did in zip(line.moments, line.cells.get(each.id, ()), strict=False)
        if moment.versions and did != timeline.NOT_RUN
    ]
    ruled = [(name, parsed(known.pins(name)), known.outcomes(failure, name)[cell]) for name in pinned(failure, cell)]
    dated = {
        _key(parsed(moment.versions)): moment.date
        for moment in known.over_time().moments
        if any(each.id in known.over_time().cells for each in alike)
    }
    found = {
        _key(versions): Sample(dated.get(_key(versions), name), versions, did, shows(failure, cell, did))
        for name, versions, did in reversed([(TODAY, today.versions, told[cell]), *ran, *ruled])
    }
    if reported_in(failure, cell) and failure.reported:
        name, did = failure.reported.stack, known.outcomes(failure, failure.reported.stack)[cell]
        versions = parsed(known.pins(name))
        found.setdefault(_key(versions), Sample(name, versions, did if shows(failure, cell, did) else ("", ""), True))
    for stack, did in errors(failure).get(alike[-1].id, ()):
        there, versions = shows(failure, cell, did), _stack(stack)
        if there is not None:
            found.setdefault(_key(versions), Sample(known.stack_of(stack), versions, did, there))
    first = turn(failure.began, cell)
    if first and not any(s.shows and s.versions.get(first.package) == Version(first.version) for s in found.values()):
        found[()] = Sample("", {first.package: Version(first.version)}, ("", ""), True)
    order, none = (package(failure, cell), *STACK), Version("0")
    return sorted(found.values(), key=lambda s: (*(s.versions.get(name, none) for name in order), bool(s.stack)))


def package(failure: Failure, cell: Cell) -> str:
    """The library in which a cell goes wrong."""
    variant = failure.variant(cell.variant)
    engine = "deepspeed" if cell.strategy.startswith("zero") else "torch"
    return variant.package or ("trl" if variant.trainer else engine)


def _key(versions: Mapping[str, Version]) -> tuple[tuple[str, Version], ...]:
    return tuple(sorted(versions.items()))


def pair(outcome: str) -> Told:
    """An outcome with its signature from one text, as timelines have it: ``raises no-grad-fn``."""
    word, _, signature = outcome.partition(" ")
    return word, signature


@functools.cache
def errors(failure: Failure) -> dict[str, list[tuple[str, Told]]]:
    """By cell, the stacks that errors are recorded of; the failure's own come before others, which may take their place
    at times."""
    found: dict[str, list[tuple[str, Told]]] = {}
    own = [entry for entry in known.recorded() if entry["failure"] == failure.name]
    for entry in sorted(own, key=lambda entry: entry["signature"] in failure.elsewhere):
        for stack, names in entry["stacks"].items():
            for name in names:
                found.setdefault(name, []).append((stack, (entry["outcome"], entry["signature"])))
    return found


def pinned(failure: Failure, cell: Cell) -> list[str]:
    """The stacks of stacks/ on which a run held a cell against its rules.

    They are the ones that the failure names: for all cells where they are a pair, else for those that a rule with
    versions is about.
    """
    upgrades = [claim.swap["stack"] for claim in failure.claims.values() if "stack" in claim.swap]
    both = [failure.reported.stack, failure.reported.good] if failure.reported else []
    ruled = any(rule.versions and expectations.about(rule, cell) for rule in runner.rules(failure))
    named = dict.fromkeys((*both, *upgrades)) if ruled or all(both) else {}
    return [stack for stack in named if stack not in ("", TODAY)]


def reported_in(failure: Failure, cell: Cell) -> bool:
    """Whether a failure was reported in a cell."""
    axes = ("variant", "strategy", "checkpointing", "precision")
    return bool(failure.reported) and all(getattr(cell, axis) == getattr(failure.reported, axis) for axis in axes)


@functools.cache
def _silent(failure: Failure, variant: str) -> frozenset[Told]:
    """The outcomes without an error that are the failure in a variant: those of its rules, where any stack shows it."""
    named = {TODAY, *(stack for cell in known.outcomes(failure) for stack in pinned(failure, cell))}
    named |= {failure.reported.stack} if failure.reported else set()
    told = {did for name in named for cell, did in known.outcomes(failure, name).items() if cell.variant == variant}
    return frozenset(did for did in told if did[0] in ("diverges", "misplaced", "hangs", "crashes"))


def shows(failure: Failure, cell: Cell, told: Told) -> bool | None:
    """Whether what a broken cell did is the failure; None for what says nothing, such as another error.

    Silent outcomes are the failure where a rule says so of the same variant: another one's may have another cause.
    """
    outcome, signature = told
    if signature in failure.elsewhere:
        return False
    if outcome == "raises":
        return True if signature in failure.signatures else None
    if told in _silent(failure, cell.variant):
        return True
    return False if outcome == "trains" else None


def turn(turns: Iterable[Turn], cell: Cell) -> Turn | None:
    """The first of several turns that is about a cell."""
    return next((t for t in turns if all(matches(getattr(cell, axis), (p,)) for axis, p in t.where.items())), None)


def _stack(text: str) -> dict[str, Version]:
    """A stack in one line, such as ``torch 2.13.0, trl 1.16.0``, by package."""
    return parsed(dict(part.split(" ") for part in text.split(", ")))


def parsed(versions: Mapping[str, str]) -> dict[str, Version]:
    """Versions by package, without local build tags; what is no version is left out."""
    found = {}
    for name, version in versions.items():
        try:
            found[name] = ranges.public(version)
        except InvalidVersion:
            continue
    return found
