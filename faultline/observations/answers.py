"""What cells do with somebody's versions: whether they show their failure, with what doubt, and what the rules say."""

import functools
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from packaging.version import Version

from faultline import strategies
from faultline.base.packages import STACK, TODAY
from faultline.catalogue import Change, Failure
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.claims import Outcomes
from faultline.observations import history, measured, ranges
from faultline.observations.history import Observation
from faultline.observations.ranges import Range

ANY = Range()


class DoubtKind(Enum):
    """Why it isn't known whether a cell shows its failure."""

    TURN = auto()  # with one of the releases asked for it does, with another it doesn't
    FEW = auto()  # too few runs had such releases
    TORCH = auto()  # the runs had another torch
    RELEASES = auto()  # the runs had other releases, or these and others


class Doubt(NamedTuple):
    """Why a cell's answer is open: the kind is what decisions compare, the text what people read."""

    kind: DoubtKind
    text: str


TODAY_ONLY = Doubt(DoubtKind.FEW, "your releases behave like today's; no others were measured")
NOT_BEFORE = Doubt(DoubtKind.FEW, "before the fix other strategies failed like this; this one was not measured then")
FEW = Doubt(DoubtKind.FEW, "your releases behave like the few that were measured")
TOGETHER = Doubt(DoubtKind.RELEASES, "your releases do together what each of them did with other packages of its time")


class CellAnswer(NamedTuple):
    """Whether a cell shows its failure with some versions; None where that isn't known, and there is a doubt."""

    shows: bool | None
    doubt: Doubt | None = None


def behaviour(failure: Failure, cell: Cell, versions: Mapping[str, Range]) -> CellAnswer:
    """What a cell does with these versions, by what it did with those that were measured.

    Nearly all runs had one torch. Runs with another torch say something of their own releases alone.
    """
    torch = _measured_torch()
    usual: list[Observation] = []
    others: list[Observation] = []
    for observation in history.observations_of(failure, cell):
        (usual if observation.versions.get("torch", torch) == torch else others).append(observation)
    answer, in_one = _with_usual_torch(failure, cell, versions, usual), _in_one_version(versions)
    for observation in others:
        pinned, contradicts = observation.versions.keys() <= in_one, observation.shows and answer.shows is False
        if (pinned or contradicts) and _fits(observation, versions):
            if pinned:
                return CellAnswer(observation.shows is True)
            there = f"your releases are those of {_stack_in_words(observation, {})}"
            answer = CellAnswer(None, Doubt(DoubtKind.RELEASES, there))
    return answer


def _measured_torch() -> Version:
    return ranges.public(measured.pinned()["torch"])


def _fits(observation: Observation, versions: Mapping[str, Range]) -> bool:
    return all(versions.get(name, ANY).holds(version) for name, version in observation.versions.items())


def _in_one_version(versions: Mapping[str, Range]) -> set[str]:
    """The packages that are asked for in one version."""
    return {name for name, range_ in versions.items() if range_.pinned is not None}


def _with_usual_torch(
    failure: Failure, cell: Cell, versions: Mapping[str, Range], runs: Sequence[Observation]
) -> CellAnswer:
    """As `behaviour`, by what a cell did with the one torch that nearly all runs had."""
    asked = {name: range_ for name, range_ in versions.items() if name != "torch" and not range_.open}
    turns = _turns(failure, cell, asked)
    if turns.excluded:
        return CellAnswer(False)
    before_fix = _before_fix(failure, cell, runs)
    if not before_fix:
        return CellAnswer(None, turns.doubt or NOT_BEFORE)
    same_torch = versions.get("torch", ANY).holds(_measured_torch())
    if exact := _exact_run(before_fix, asked, same_torch):
        return CellAnswer(exact.shows is True)
    inside, outside = _nearest(before_fix, asked)
    if not inside:
        return CellAnswer(False) if _trains_with_fewer(before_fix, asked) else CellAnswer(None, TOGETHER)
    if not any(observation.shows for observation in inside):
        return CellAnswer(False)
    doubt = turns.doubt or _doubt(failure, cell, asked, before_fix, inside, outside)
    if not doubt and not same_torch:
        doubt = Doubt(DoubtKind.TORCH, f"your torch does what {_measured_torch()} does")
    return CellAnswer(None, doubt) if doubt else CellAnswer(True)


def _exact_run(runs: Sequence[Observation], asked: Mapping[str, Range], same_torch: bool = True) -> Observation | None:
    """The run that had just the versions asked for."""
    exactly = dict(asked) | ({"torch": ranges.exactly(str(_measured_torch()))} if same_torch else {})
    in_one = _in_one_version(exactly)
    exact = (o for o in runs if len(o.versions) > 1 and o.versions.keys() <= in_one and _fits(o, exactly))
    return next(exact, None)


def _nearest(runs: Sequence[Observation], asked: Mapping[str, Range]) -> tuple[list[Observation], str]:
    """As `relevant`; of runs that are only near and ended before the failure, the nearest that got as far instead."""
    inside, outside = relevant(runs, asked)
    if any(each.shows is not None or _fits(each, asked) for each in inside):
        return inside, outside
    return relevant([each for each in runs if each.shows is not None], asked) if inside else (inside, outside)


def _trains_with_fewer(runs: Sequence[Observation], asked: Mapping[str, Range]) -> bool:
    """Whether a cell, of which no run fits all versions asked for, trains with those of some of these packages."""

    @functools.cache
    def trains(names: frozenset[str]) -> bool:
        fewer = {name: range_ for name, range_ in asked.items() if name in names}
        if exact := _exact_run(runs, fewer):
            return exact.shows is not True
        if inside := _nearest(runs, fewer)[0]:
            return not any(observation.shows for observation in inside)
        return any(trains(names - {name}) for name in names)

    return any(trains(frozenset(asked) - {name}) for name in asked)


def _before_fix(failure: Failure, cell: Cell, runs: Sequence[Observation]) -> list[Observation]:
    fix = fixed(failure, cell)
    return [o for o in runs if not fix or o.versions.get(fix.package, Version(fix.version)) < Version(fix.version)]


class _Turns(NamedTuple):
    """Whether versions are excluded, being before a failure began or after its fix, and the doubt where some are."""

    excluded: bool
    doubt: Doubt | None = None


def _turns(failure: Failure, cell: Cell, asked: Mapping[str, Range]) -> _Turns:
    """Where versions lie to the releases in which a cell began to show its failure, and does so no more."""
    conditions = []
    if began := history.turn(failure.history.began, cell):
        versions = asked.get(began.package, ANY)
        if versions.below(Version(began.version)):
            return _Turns(excluded=True)
        if not versions.reaches(Version(began.version)):
            conditions.append(f"{began.package} is {Version(began.version)} or newer")
    if fix := fixed(failure, cell):
        versions = asked.get(fix.package, ANY)
        if versions.reaches(Version(fix.version)):
            return _Turns(excluded=True)
        if not versions.below(Version(fix.version)):
            conditions.append(f"{fix.package} is older than {Version(fix.version)}")
    return _Turns(False, Doubt(DoubtKind.TURN, " and ".join(conditions)) if conditions else None)


def _doubt(
    failure: Failure,
    cell: Cell,
    asked: Mapping[str, Range],
    runs: Sequence[Observation],
    inside: Sequence[Observation],
    outside: str,
) -> Doubt | None:
    """Why the observations that fit, some of which show the failure, do not settle it; None if they do.

    They are too few where some didn't get as far as the failure; or where nobody says the version of the package in
    which it goes wrong, nor that of the release that began it, and not every month was measured.
    """
    pinned = bool(asked) and all(each.pinned is not None for each in asked.values())
    exactly = pinned and not outside and history.package(failure, cell) in (*asked, "torch")
    if [observation.stack for observation in runs] == [TODAY] and not exactly:
        return TODAY_ONLY
    shown = [observation for observation in inside if observation.shows]
    unseen = sum(observation.shows is None for observation in inside)
    if outside:
        text = f"your releases, {outside} than any that was measured, do what {_versions(shown[0], asked)} does"
    elif any(observation.shows is False for observation in inside):
        some = " and ".join(dict.fromkeys(_stack_in_words(observation, asked) for observation in (shown[0], shown[-1])))
        text = f"your releases behave like those of {some}, and not like others that were measured"
    elif unseen:
        few = f"{len(inside) - unseen} of {len(inside)}"
        text = f"your releases behave like {few} that were measured; the others didn't get that far"
    else:
        began = history.turn(failure.history.began, cell)
        stated = {history.package(failure, cell), *([began.package] if began else [])} & asked.keys()
        months = {stack.month for stack in measured.months()} - {TODAY}
        return None if stated or months <= {observation.stack for observation in inside} else FEW
    return Doubt(DoubtKind.RELEASES, text)


def deciding(
    failure: Failure, cell: Cell, versions: Mapping[str, Range], why: Doubt, unused: Collection[str] = ()
) -> tuple[str, ...]:
    """The packages whose versions would decide whether a cell shows its failure, which is open for a reason; where each
    of them is in one version already, those that were not measured with the others. What is `unused` decides nothing.
    """
    if why.kind is DoubtKind.TORCH:
        return ("torch",)
    turns = (fixed(failure, cell), history.turn(failure.history.began, cell))
    pinned = _in_one_version(versions) | {*unused}
    named = dict.fromkeys(turn.package for turn in turns if turn) or {history.package(failure, cell): None}
    if loose := tuple(name for name in named if name not in pinned):
        return loose
    runs = _before_fix(failure, cell, history.observations_of(failure, cell))
    asked = {n: r for n, r in versions.items() if n != "torch"}
    odd = [name for name in asked if relevant(runs, {name: asked[name]})[1]]
    odd = odd or [name for name in asked if relevant(runs, {n: r for n, r in asked.items() if n != name})[0]]
    others = (strategies.package(cell.strategy), *STACK)
    loose = tuple(name for name in others if name not in pinned and any(name in each.versions for each in runs))
    if relevant(runs, asked)[0] and not odd:
        return loose[:1] or tuple(versions)
    return tuple(odd or versions)


def _stack_in_words(observation: Observation, versions: Mapping[str, Range]) -> str:
    return observation.stack or _versions(observation, versions)


def _versions(observation: Observation, asked: Mapping[str, Range]) -> str:
    """The versions of an observation, of the packages that are asked about if any is."""
    names = [name for name in observation.versions if name in asked]
    names = names or [name for name in observation.versions if name != "torch"]
    return ", ".join(f"{name} {observation.versions[name]}" for name in names)


def fixed(failure: Failure, cell: Cell) -> Change | None:
    """The fix of a cell, which doesn't show the failure any more."""
    shown = history.shows(failure, cell, measured.outcomes(failure)[cell])
    return None if shown else history.turn(failure.history.fixed, cell)


def relevant(runs: Sequence[Observation], asked: Mapping[str, Range]) -> tuple[list[Observation], str]:
    """The observations that fit every package asked for; and ``newer``, ``older`` or ``other`` if a package is asked
    for outside of all observations, on that side. None fits if releases of different times are asked for.

    Each package leaves fewer observations, so that somebody who names fewer packages is never shown fewer failures.
    """
    left, sides = set(range(len(runs))), []
    for name, range_ in asked.items():
        versions = tuple(each.versions.get(name) for each in runs)
        if not any(versions):
            continue
        fit, side = _fitting(versions, range_)
        left &= fit
        sides += [side] if side else []
    return [runs[i] for i in sorted(left)], sides[0] if len(set(sides)) == 1 else "other" if sides else ""


# An audit asks the same of thousands of cells.
@functools.lru_cache(10_000)
def _fitting(versions: tuple[Version | None, ...], asked: Range) -> tuple[frozenset[int], str]:
    """The observations from the newest that isn't newer than what is asked for to the oldest that isn't older.

    Those without a version fit whatever is asked for.
    """
    known = {i: version for i, version in enumerate(versions) if version}
    without = frozenset(range(len(versions))) - known.keys()
    inside = [i for i, version in known.items() if asked.holds(version)]
    below = [i for i, version in known.items() if asked.reaches(version)]
    above = [i for i, version in known.items() if asked.ends_by(version)]
    if not inside and not (below and above):
        if below:
            return without | {below[-1]}, "newer"
        return (without | {above[0]}, "older") if above else (without | known.keys(), "other")
    first = below[-1] if below else min(inside)
    last = above[0] if above else max(inside)
    return without | set(range(min(first, last), max(first, last) + 1)), ""


def outcomes_with(failure: Failure, versions: Mapping[str, str]) -> tuple[dict[str, str], Outcomes]:
    """The versions by which a failure's rules tell cells apart, and what cells do with them.

    Without such versions, it is what they do on the stack that shows the failure.
    """
    packages = {package for rule in expected.rules(failure) for package, _ in rule.versions}
    named = {n: version for n, version in versions.items() if n in packages and ranges.is_version(version)}
    shown = measured.shown_on(failure)
    return named, measured.ruled(failure, measured.pins(shown) | named) if named else measured.outcomes(failure, shown)
