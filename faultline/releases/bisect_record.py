"""What a bisect found, as the record that is kept in bisect.json."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from faultline.base.packages import NEEDED
from faultline.base.text import cut
from faultline.releases.bisection import Bisection
from faultline.releases.search import Boundary, Smallest
from faultline.runs.campaigns import Measured
from faultline.stacks import requests
from faultline.stacks.environments import pins
from faultline.stacks.index import Release

WIDTH = 300  # characters of an error

Changes = Mapping[str, tuple[str, str]]
"""The two versions of each package that differs; ``none`` where it isn't installed."""


@dataclass(frozen=True)
class CellOutcome:
    outcome: str
    signature: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class Side(Release):
    """One side of the boundary: the release, what its cells did, how many runs agree, what repeats it."""

    shows: bool | None
    runs: int
    agree: int
    outcomes: Mapping[str, CellOutcome]
    stack: Mapping[str, str]
    lock: str
    had_to_change: Changes
    repeat: str

    @property
    def answer(self) -> str:
        return "shows the failure" if self.shows else "doesn't show it"


@dataclass(frozen=True, kw_only=True)
class Skipped(Release):
    why: str


@dataclass(frozen=True)
class Trial:
    """A mixture of both stacks: the packages as in the newer one, and whether that changes what the cells do."""

    packages: Sequence[str]
    changes: bool | None
    why: str


@dataclass(frozen=True)
class Blame:
    """The packages whose change is enough; `minimal` if none of them can be left out."""

    packages: Sequence[str]
    minimal: bool
    trials: Sequence[Trial]


@dataclass(frozen=True)
class Record:
    """All that a bisect found, as bisect.json has it."""

    failure: str
    cells: Sequence[str]
    package: str
    direction: str
    others: str
    bad: Sequence[str]
    releases: Sequence[Release]
    before: Side | None
    after: Side | None
    between: Sequence[str]
    skipped: Sequence[Skipped]
    environments: int
    changed: Changes
    blame: Blame | None


def record(bisection: Bisection, boundary: Boundary, culprits: Smallest | None) -> Record:
    question = bisection.question
    before, after = side(bisection, boundary.before), side(bisection, boundary.after)
    old, new = (pins(each.lock) if each else {} for each in (before, after))
    trials = [Trial(names, bisection.side(measured), why(measured)) for names, measured in bisection.trials]
    return Record(
        failure=question.failure.name,
        cells=[cell.id for cell in question.cells],
        package=question.package,
        direction="introduced" if question.introduced else "fixed",
        others="dated" if question.dated else "fixed",
        bad=question.bad,
        releases=bisection.releases,
        before=before,
        after=after,
        between=[bisection.releases[place].version for place in boundary.between],
        skipped=[
            Skipped(**vars(bisection.releases[place]), why=" / ".join(dict.fromkeys(map(why, bisection.runs[place]))))
            for place in boundary.skipped
        ],
        environments=bisection.environments,
        changed=changes({*old, *new} - {question.package}, old, new) if before and after else {},
        blame=Blame(culprits.items, culprits.minimal, trials) if culprits else None,
    )


def side(bisection: Bisection, place: int | None) -> Side | None:
    if place is None:
        return None
    question, runs, sides = bisection.question, bisection.runs[place], bisection.sides(place)
    typical = runs[sides.index(bisection.verdict(place))]
    lock, here = pins(typical.lock), pins("" if question.dated else "\n".join(requests.installed()))
    return Side(
        **vars(bisection.releases[place]),
        shows=question.shows(typical),
        runs=len(runs),
        agree=sides.count(bisection.verdict(place)),
        outcomes={
            entry.cell.id: CellOutcome(entry.outcome, entry.signature, entry.detail) for entry in typical.results
        },
        stack=typical.versions,
        lock=typical.lock,
        had_to_change=changes({*here} & {*lock} - {question.package}, here, lock),
        repeat=repeat(bisection, typical, bisection.releases[place].version),
    )


def changes(names: Collection[str], old: Mapping[str, str], new: Mapping[str, str]) -> Changes:
    pairs = {name: (old.get(name, "none"), new.get(name, "none")) for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def why(measured: Measured) -> str:
    """What a stack did, in a line: why there was no run, or each outcome with its error."""
    outcomes = [f"{entry.did}: {entry.detail}".removesuffix(": ") for entry in measured.results]
    return cut(measured.unusable or "; ".join(dict.fromkeys(outcomes)) or "no cell ran", WIDTH)


def repeat(bisection: Bisection, measured: Measured, version: str) -> str:
    """The command that runs a side again; a dated stack is named by the versions of what the suite imports."""
    question, versions = bisection.question, pins(measured.lock)
    pinned = {question.package: version}
    if question.dated:
        pinned |= {name: versions[name] for name in NEEDED if name in versions and name not in ("torch", *pinned)}
    stack = " ".join(f"{name}=={version}" for name, version in pinned.items())
    return f"faultline run --cell {','.join(cell.id for cell in question.cells)} --stack '{stack}'"
