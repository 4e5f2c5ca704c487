"""What a cell did over the releases that were measured, and whether it shows its failure with others."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import InvalidVersion, Version

from faultline import bootstrap, expectations, known, ranges, runner, stacks
from faultline.catalogue import Failure, Turn
from faultline.matrix import Cell, matches
from faultline.ranges import Range
from faultline.server import STACK
from faultline.stacks import TODAY

TODAY_ONLY = "your releases do what today's do, as only these were measured"
TOGETHER = "your releases show it with others of their time, and were never measured together"
NOT_BEFORE = "this strategy does what others did before the fix, which were measured"


@dataclass(frozen=True)
class Sample:
    """What a cell did on one stack: whether it showed the failure; None where it couldn't tell.

    `stack` is what STACK takes: a month of the timeline, a file of stacks/, or `today`; empty where versions are all.
    """

    stack: str
    versions: Mapping[str, Version]
    shows: bool | None


def state(failure: Failure, cell: Cell, versions: Mapping[str, Range]) -> tuple[bool | None, str]:
    """Whether a cell shows its failure with these versions; None where that isn't known, with the reason.

    Nearly all runs had one torch. Those with another tell of their own releases, and nothing of what lies between.
    """
    measured = ranges.public(known.pinned()["torch"])
    usual = [sample for sample in samples(failure, cell) if sample.versions.get("torch", measured) == measured]
    told = _state(failure, cell, versions, usual)
    for sample in samples(failure, cell):
        fits = all(versions.get(name, Range()).holds(version) for name, version in sample.versions.items())
        if sample in usual or sample.shows is None or not fits:
            continue
        if all(versions.get(name, Range()).pinned for name in sample.versions):
            return sample.shows, ""
        if sample.shows and told == (False, ""):
            told = None, f"your releases are those of {sample.stack or _named(sample, {})}"
    return told


def _state(
    failure: Failure, cell: Cell, versions: Mapping[str, Range], history: list[Sample]
) -> tuple[bool | None, str]:
    """As `state`, by what a cell did with the one torch that nearly all runs had."""
    fix = fixed(failure, cell)
    measured = ranges.public(known.pinned()["torch"])
    asked = {name: range_ for name, range_ in versions.items() if name != "torch" and (range_.low or range_.high)}
    first = turn(failure.began, cell)
    full, later, older = history, "", ""
    if first:
        version = Version(first.version)
        if asked.get(first.package, Range()).below(version):
            return False, ""
        later = "" if asked.get(first.package, Range()).reaches(version) else f"{first.package} is {version} or newer"
    if fix:
        own, version = asked.get(fix.package, Range()), Version(fix.version)
        if own.reaches(version):
            return False, ""
        older = "" if own.below(version) else f"{fix.package} is older than {version}"
        history = [sample for sample in history if sample.versions.get(fix.package, version) < version]
        if not history:
            return None, older or NOT_BEFORE
    telling, outside = relevant(history, asked)
    if not telling:
        alone = [_state(failure, cell, {n: r for n, r in asked.items() if n != name}, full)[0] for name in asked]
        return (False, "") if False in alone else (None, TOGETHER)
    told = {sample.shows for sample in telling if sample.shows is not None}
    if True not in told:
        return False, ""
    if later or older:
        return None, " and ".join(filter(None, (later, older)))
    pinned = bool(asked) and all(each.pinned for each in asked.values())
    if [sample.stack for sample in history] == [TODAY] and (
        outside or not pinned or package(failure, cell) not in (*asked, "torch")
    ):
        return None, TODAY_ONLY
    did = [sample for sample in telling if sample.shows]
    if outside:
        return None, f"your releases, {outside} than any that was measured, do what {_named(did[0], asked)} does"
    torch = versions.get("torch")
    if told == {True} and torch and not torch.holds(measured):
        return None, f"your torch does what {measured} does"
    if told == {True}:
        return True, ""
    some = " and ".join(dict.fromkeys(sample.stack or _named(sample, asked) for sample in (did[0], did[-1])))
    return None, f"your releases do what those of {some} do, not what others did"


def package(failure: Failure, cell: Cell) -> str:
    """The library in which a cell goes wrong."""
    variant = failure.variant(cell.variant)
    engine = "deepspeed" if cell.strategy.startswith("zero") else "torch"
    return variant.package or ("trl" if variant.trainer else engine)


def _named(sample: Sample, versions: Mapping[str, Range]) -> str:
    """The versions of a sample, of the packages that are asked about if any is."""
    names = [name for name in sample.versions if name in versions] or [n for n in sample.versions if n != "torch"]
    return ", ".join(f"{name} {sample.versions[name]}" for name in names)


def fixed(failure: Failure, cell: Cell) -> Turn | None:
    """The fix of a cell, which doesn't show the failure any more."""
    return None if shows(failure, *known.outcomes(failure)[cell]) else turn(failure.fixes, cell)


def turn(turns: Iterable[Turn], cell: Cell) -> Turn | None:
    """The first of several turns that is about a cell."""
    return next((t for t in turns if all(matches(getattr(cell, axis), (p,)) for axis, p in t.where.items())), None)


@functools.cache
def samples(failure: Failure, cell: Cell) -> list[Sample]:
    """What a cell did on each stack of the timeline, or only today where it isn't there, the oldest first.

    Among them are the stacks of stacks/ that its rules were held against, and those that the failure's errors are
    recorded of, the one that it was reported on, where a run of `reproduce` shows it, and the first release with it,
    where a search found that. A cell in bf16 that does today what its twin in fp32 does has the twin's past.
    """
    plain = replace(cell, precision="fp32")
    told = known.outcomes(failure)
    now = shows(failure, *told[cell])
    past = known.over_time().cells.get(plain.id)
    if shows(failure, *told[plain]) != now:
        return [Sample(TODAY, _versions(known.pinned()), now)]
    moments = known.over_time().moments
    found = [
        Sample(moment.date, _versions(moment.versions), shows(failure, *f"{outcome} ".split(" ")[:2]))
        for moment, outcome in zip(moments, past or (), strict=past is not None)
        if moment.versions
    ] or [Sample(TODAY, _versions(known.pinned()), now)]
    for stack in pinned(failure, cell):
        if not any(_pins(stack).items() <= sample.versions.items() for sample in found):
            found.append(Sample(stack, _pins(stack), shows(failure, *known.outcomes(failure, stack)[cell])))
    first = turn(failure.began, cell)
    others = [({first.package: Version(first.version)}, True)] if first else []
    if reported_in(failure, cell) and failure.reported:
        others.append((_pins(failure.reported.stack), True))
    for stack, outcome in recorded(failure).get(plain.id, ()):
        there = shows(failure, *outcome)
        others += [(_stack(stack), there)] if there is not None else []
    for versions, there in sorted(others, key=lambda each: not each[1]):  # another error may come in its place at times
        if versions not in [sample.versions for sample in found]:
            found.append(Sample(_name(versions), versions, there))
    order, none = (package(failure, cell), *STACK), Version("0")
    return sorted(found, key=lambda sample: (*(sample.versions.get(name, none) for name in order), bool(sample.stack)))


@functools.cache
def recorded(failure: Failure) -> dict[str, list[tuple[str, tuple[str, str]]]]:
    """By cell, the stacks that something is recorded of, as errors name them, with the outcome and the signature."""
    found: dict[str, list[tuple[str, tuple[str, str]]]] = {}
    for entry in known.recorded():
        for stack, names in entry["stacks"].items() if entry["failure"] == failure.name else ():
            for name in names:
                found.setdefault(name, []).append((stack, (entry["outcome"], entry["signature"])))
    for stack, by in known.otherwise().items():
        for told, names in by.items():
            outcome, _, signature = told.partition(" ")
            for name in names:
                if name.startswith(f"{failure.name}/"):
                    found.setdefault(name, []).append((stack, (outcome, signature)))
    return found


def pinned(failure: Failure, cell: Cell) -> list[str]:
    """The stacks of stacks/ on which a run held a cell against its rules.

    They are the ones that the failure names: for all cells where they are a pair, else for those that a rule with
    versions is about.
    """
    upgrades = [claim.swap["stack"] for claim in failure.claims.values() if "stack" in claim.swap]
    pair = [failure.reported.stack, failure.reported.good] if failure.reported else []
    ruled = any(rule.versions and expectations.about(rule, cell) for rule in runner.rules(failure))
    named = dict.fromkeys((*pair, *upgrades)) if ruled or all(pair) else {}
    return [stack for stack in named if stack not in ("", TODAY)]


@functools.cache
def _pins(stack: str) -> dict[str, Version]:
    """What a stack of stacks/ pins; its torch is today's where it pins none."""
    pins = {name: version for name, version in bootstrap.pinned(stacks.named()[stack]).items() if name in STACK}
    return _versions({"torch": known.pinned()["torch"]} | pins)


def _name(versions: Mapping[str, Version]) -> str:
    """The stack of stacks/ that has these versions and no others of them, if one does."""
    return next((name for name in stacks.named() if name != TODAY and _pins(name) == versions), "")


def reported_in(failure: Failure, cell: Cell) -> bool:
    """Whether a failure was reported in a cell."""
    axes = ("variant", "strategy", "checkpointing", "precision")
    return bool(failure.reported) and all(getattr(cell, axis) == getattr(failure.reported, axis) for axis in axes)


def _stack(text: str) -> dict[str, Version]:
    """A stack in one line, such as ``torch 2.13.0, trl 1.16.0``, by package."""
    return _versions({name: version for name, _, version in (part.strip().partition(" ") for part in text.split(","))})


def _versions(told: Mapping[str, str]) -> dict[str, Version]:
    found = {}
    for name, version in told.items():
        try:
            found[name] = ranges.public(version)
        except InvalidVersion:
            continue
    return found


@functools.cache
def _own(failure: Failure) -> frozenset[tuple[str, str]]:
    """The outcomes that are the failure, in its broken variants where it shows and in its own words."""
    broken = {told for cell, told in known.outcomes(failure, known.shown_on(failure)).items() if cell.broken}
    raised = {("raises", name) for name in failure.signatures}
    silent = {told for told in broken if told[0] in ("diverges", "misplaced", "hangs", "crashes")}
    return frozenset(told for told in raised | silent if told[1] not in failure.elsewhere)


def shows(failure: Failure, outcome: str, signature: str) -> bool | None:
    """Whether an outcome is the failure; None for one that says nothing, such as another error."""
    if (outcome, signature) in _own(failure):
        return True
    return False if outcome == "trains" or signature in failure.elsewhere else None


def relevant(history: Sequence[Sample], asked: Mapping[str, Range]) -> tuple[list[Sample], str]:
    """The samples that fit every package asked for, and on which side of all samples one lies: ``newer``, ``older`` or
    ``other``, if one does. None fits where releases of different times are asked for.

    Each package leaves fewer, so that whoever tells less is never told less.
    """
    left, sides = set(range(len(history))), []
    for name, range_ in asked.items():
        known_there = {i: s.versions[name] for i, s in enumerate(history) if name in s.versions}
        if not known_there:
            continue
        fit, side = _fitting(known_there, range_)
        left &= fit | (set(range(len(history))) - set(known_there))
        sides += [side] if side else []
    return [history[i] for i in sorted(left)], sides[0] if len(set(sides)) == 1 else "other" if sides else ""


def _fitting(versions: Mapping[int, Version], asked: Range) -> tuple[set[int], str]:
    """The samples from the newest that isn't newer than what is asked for to the oldest that isn't older."""
    inside = [i for i, version in versions.items() if asked.holds(version)]
    below = [i for i, version in versions.items() if asked.low is not None and version <= asked.low]
    above = [i for i, version in versions.items() if asked.high is not None and version >= asked.high]
    if not inside and not (below and above):
        if below:
            return {below[-1]}, "newer"
        return ({above[0]}, "older") if above else (set(versions), "other")
    first = below[-1] if below else min(inside)
    last = above[0] if above else max(inside)
    return set(range(min(first, last), max(first, last) + 1)), ""


def possible(failure: Failure, cell: Cell) -> bool:
    """Whether a cell can be had today."""
    return known.outcomes(failure)[cell][0] not in ("impossible", "invalid")
