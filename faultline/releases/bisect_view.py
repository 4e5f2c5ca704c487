"""The record of a bisect, which bisect.json keeps, and its lines for a terminal."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from faultline.base.packages import NEEDED
from faultline.base.text import count, cut
from faultline.catalogue.outcomes import outcome_text
from faultline.releases.bisection import Bisection, Boundary, Smallest
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
class BoundarySide(Release):
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
    before: BoundarySide | None
    after: BoundarySide | None
    between: Sequence[str]
    skipped: Sequence[Skipped]
    environments: int
    changed: Changes
    blame: Blame | None


def record(bisection: Bisection, boundary: Boundary, culprits: Smallest | None) -> Record:
    question = bisection.question
    before, after = side(bisection, boundary.before), side(bisection, boundary.after)
    old, new = (pins(each.lock) if each else {} for each in (before, after))
    trials = [Trial(names, bisection.side(measured), describe_run(measured)) for names, measured in bisection.trials]
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
            Skipped(
                **vars(bisection.releases[place]),
                why=" / ".join(dict.fromkeys(map(describe_run, bisection.runs[place]))),
            )
            for place in boundary.skipped
        ],
        environments=bisection.environments,
        changed=changes({*old, *new} - {question.package}, old, new) if before and after else {},
        blame=Blame(culprits.items, culprits.minimal, trials) if culprits else None,
    )


def side(bisection: Bisection, place: int | None) -> BoundarySide | None:
    if place is None:
        return None
    question, runs, sides = bisection.question, bisection.runs[place], bisection.sides(place)
    typical = runs[sides.index(bisection.verdict(place))]
    lock, here = pins(typical.lock), pins("" if question.dated else "\n".join(requests.installed()))
    return BoundarySide(
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


def describe_run(measured: Measured) -> str:
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


OTHERS = {
    "dated": "the rest of the stack as of each release's date",
    "fixed": "the rest of the stack as installed, as far as it fits",
}


def lines(record: Record) -> Iterator[str]:
    """A record in words."""
    before, after = record.before, record.after
    yield from record.cells
    yield ""
    yield verdict(record)
    for each in filter(None, (before, after)):
        yield from _side(record, each)
    if before and after:
        yield confidence(before, after)
    releases = f"{len(record.releases)} releases from {record.releases[0].version} to {record.releases[-1].version}"
    yield f"{count(record.environments, 'environment')} for {releases}; {OTHERS[record.others]}"
    yield from (f"  skipped {each.version}: {each.why}" for each in record.skipped)
    if record.between:
        yield "another cell of this failure may give an answer: choose it with --variant, --strategy or --checkpointing"
    if record.changed:
        number = count(len(record.changed), "package")
        yield f"besides {record.package}, {number} changed between the two: {_pairs(record.changed)}"
    if record.blame:
        yield from _blame(record.blame)
    elif record.changed:
        yield "  --resume --blame finds which of them matter"


def verdict(record: Record) -> str:
    """The answer in a sentence."""
    package, before, after, between = record.package, record.before, record.after, record.between
    if before and after and not between:
        return f"{record.direction} by {package} {after}: {before} {before.answer}"
    if before and after:
        return (
            f"{record.direction} after {package} {before} and no later than {after};"
            f" {count(len(between), 'release')} between them give no answer"
        )
    one = before or after
    if one is None:
        return f"undecided: no release of {package} in the range gives an answer"
    if between:
        return f"undecided: {package} {one} {one.answer}, and {'older' if after else 'newer'} releases give no answer"
    end, as_newest = ("oldest", " as the newest") if after else ("newest", "")
    hint = "; name one that does with --to, or look for the fix with --fixed"
    answer = f"no change: {package} {one}, the {end} in the range, {one.answer}{as_newest}"
    return answer + (hint if before and record.direction == "introduced" else "")


def confidence(before: BoundarySide, after: BoundarySide) -> str:
    """How sure the pair is, in words with counts."""
    if before.agree == before.runs == after.agree == after.runs:
        return f"confidence: {before.runs} of {before.runs} runs on both sides"
    counts = " and ".join(f"{each.agree} of {each.runs} runs on {each.version}" for each in (before, after))
    return f"confidence: {counts}; the others did something else, so the change is likely, not certain"


def _side(record: Record, each: BoundarySide) -> Iterator[str]:
    yield f"  {record.package} {each}, {each.agree} of {count(each.runs, 'run')}"
    texts = Counter(
        f"{outcome_text(did.outcome, did.signature)}: {cut(did.detail, WIDTH)}".removesuffix(": ")
        for did in each.outcomes.values()
    )
    for text, cells in texts.items():
        yield f"    {text}" + (f" in {cells} of {len(record.cells)} cells" if len(texts) > 1 else "")
    if each.had_to_change:
        yield f"    had to change from what is installed: {_pairs(each.had_to_change)}"
    yield f"    {each.repeat}"


def _pairs(changed: Changes) -> str:
    return ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changed.items())


def _blame(blame: Blame) -> Iterator[str]:
    enough = f"the change of {', '.join(blame.packages)} is enough, the rest as in the older stack"
    doubt = "" if blame.minimal else "; a smaller set may be enough too, for not every one could be tried"
    yield f"{enough}{doubt} ({count(len(blame.trials), 'trial')})"
    for trial in blame.trials:
        word = {True: "changes", False: "changes nothing", None: "no answer"}[trial.changes]
        yield f"  {', '.join(trial.packages)}: {word}: {trial.why}"
