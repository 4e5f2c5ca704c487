"""What a cell did over the releases that were measured, and whether it shows its failure with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from packaging.version import Version

from faultline import known, ranges, samples
from faultline.catalogue import Failure, Turn
from faultline.matrix import Cell
from faultline.ranges import Range
from faultline.samples import Sample
from faultline.stacks import TODAY

TODAY_ONLY = "your releases do what today's do, as only these were measured"
TOGETHER = "your releases show it with others of their time, and were never measured together"
NOT_BEFORE = "this strategy does what others did before the fix, which were measured"


def state(failure: Failure, cell: Cell, versions: Mapping[str, Range]) -> tuple[bool | None, str]:
    """Whether a cell shows its failure with these versions; None where that isn't known, with the reason.

    Nearly all runs had one torch. Those with another tell of their own releases, and nothing of what lies between.
    """
    measured = ranges.public(known.pinned()["torch"])
    runs: dict[bool, list[Sample]] = {True: [], False: []}
    for sample in samples.of(failure, cell):
        runs[sample.versions.get("torch", measured) == measured].append(sample)
    answer = _state(failure, cell, versions, runs[True])
    for sample in runs[False]:
        fits = _fits(sample, versions)
        if fits and _pinned(sample, versions):
            return sample.shows is True, ""
        if fits and sample.shows and answer == (False, ""):
            answer = None, f"your releases are those of {sample.stack or _named(sample, {})}"
    return answer


def _fits(sample: Sample, versions: Mapping[str, Range]) -> bool:
    return all(versions.get(name, Range()).holds(version) for name, version in sample.versions.items())


def _pinned(sample: Sample, versions: Mapping[str, Range]) -> bool:
    return all(versions.get(name, Range()).pinned for name in sample.versions)


def _state(failure: Failure, cell: Cell, versions: Mapping[str, Range], runs: list[Sample]) -> tuple[bool | None, str]:
    """As `state`, by what a cell did with the one torch that nearly all runs had."""
    fix = fixed(failure, cell)
    measured = ranges.public(known.pinned()["torch"])
    asked = {name: range_ for name, range_ in versions.items() if name != "torch" and (range_.low or range_.high)}
    first = samples.turn(failure.began, cell)
    history, later, older = runs, "", ""
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
        history = [sample for sample in runs if sample.versions.get(fix.package, version) < version]
        if not history:
            return None, older or NOT_BEFORE
    torch = versions.get("torch", Range())
    just = {"torch": ranges.exactly(str(measured))} if torch.holds(measured) else {}
    for sample in history:
        if len(sample.versions) > 1 and _fits(sample, just | asked) and _pinned(sample, just | asked):
            return sample.shows is True, ""
    telling, outside = relevant(history, asked)
    if not telling:
        alone = [_state(failure, cell, {n: r for n, r in asked.items() if n != name}, runs)[0] for name in asked]
        return (False, "") if False in alone else (None, TOGETHER)
    told = {sample.shows for sample in telling if sample.shows is not None}
    if True not in told:
        return False, ""
    if later or older:
        return None, " and ".join(filter(None, (later, older)))
    pinned = bool(asked) and all(each.pinned for each in asked.values())
    if [sample.stack for sample in history] == [TODAY] and (
        outside or not pinned or samples.package(failure, cell) not in (*asked, "torch")
    ):
        return None, TODAY_ONLY
    did = [sample for sample in telling if sample.shows]
    if outside:
        return None, f"your releases, {outside} than any that was measured, do what {_named(did[0], asked)} does"
    if told == {True} and not torch.holds(measured):
        return None, f"your torch does what {measured} does"
    if told == {True}:
        return True, ""
    some = " and ".join(dict.fromkeys(sample.stack or _named(sample, asked) for sample in (did[0], did[-1])))
    return None, f"your releases do what those of {some} do, not what others did"


def _named(sample: Sample, versions: Mapping[str, Range]) -> str:
    """The versions of a sample, of the packages that are asked about if any is."""
    names = [name for name in sample.versions if name in versions] or [n for n in sample.versions if n != "torch"]
    return ", ".join(f"{name} {sample.versions[name]}" for name in names)


def fixed(failure: Failure, cell: Cell) -> Turn | None:
    """The fix of a cell, which doesn't show the failure any more."""
    return None if samples.shows(failure, cell, known.outcomes(failure)[cell]) else samples.turn(failure.fixes, cell)


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
