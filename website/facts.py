"""The facts of failures and stacks on the site's pages, gathered from the catalogue, the observations and git."""

import functools
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.packages import STACK, TODAY
from faultline.base.paths import ROOT
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells.cell import Cell, default_world
from faultline.cells.claims import showing
from faultline.cells.words import group_strategies, in_order
from faultline.observations import history, measured, symptoms
from faultline.stacks import requests
from website import answers

GRAVEST = ("diverges", "misplaced", "crashes", "hangs", "raises", "trains")
"""Outcomes in which a failure may end, those without an error first."""


@dataclass(frozen=True)
class Line:
    """One line of a grid: a broken variant in one checkpointing mode, and what it did under each strategy."""

    variant: str
    checkpointing: str
    cells: Sequence[Did | None]


@dataclass(frozen=True)
class Grid:
    """Where a failure happens on a stack, in fp32 at the usual world size."""

    stack: str
    strategies: Sequence[str]
    lines: Sequence[Line]


@dataclass(frozen=True)
class OnStack:
    """A failure's broken cells on one stack: those that show it, each with how it ends where that is known, and those
    that don't; `text` has where, and how."""

    stack: str
    ends: tuple[tuple[Cell, Did | None], ...] = ()
    clear: tuple[Cell, ...] = ()
    text: str = ""

    @property
    def shown(self) -> tuple[Cell, ...]:
        return tuple(cell for cell, _ in self.ends)

    @property
    def count(self) -> int:
        return len(self.shown) + len(self.clear)


@dataclass(frozen=True)
class Version:
    """A stack as a page names it: `title` is its name, a date, or both, `kind` is today, month or pinned; `month` is
    the day whose newest releases it has, or empty."""

    name: str
    title: str
    kind: str
    versions: Mapping[str, str] = field(default_factory=dict)
    month: str = ""


@functools.cache
def stacks() -> dict[str, Version]:
    """Every stack that has a name, by that name: today's, then the months from the newest, then those of stacks/."""
    known = [Version(TODAY, f"today ({pinned_day()})", TODAY, measured.pinned())]
    months = {each.name: each for each in measured.months() if each.name != TODAY}
    known += [
        Version(name, stack_title(name, each.month), "month", dict(each.versions), each.month)
        for name, each in reversed(months.items())
    ]
    known += [
        Version(name, name, "pinned", measured.pins(name))
        for name in requests.named()
        if name != TODAY and name not in months
    ]
    return {each.name: each for each in known}


def grid(failure: Failure, stack: str) -> Grid:
    """The outcomes of the broken variants on a stack."""
    observed = {
        (cell.variant, cell.strategy, cell.checkpointing): did
        for cell, did in measured.outcomes(failure, stack).items()
        if cell.broken and cell.precision == "fp32" and cell.world_size == default_world(cell)
    }
    names = in_order((strategy for _, strategy, _ in observed), strategies.names())
    lines = []
    for variant in (each.name for each in failure.variants if each.broken):
        for mode in CHECKPOINTING:
            did = [observed.get((variant, name, mode)) for name in names]
            if any(did):
                lines.append(Line(variant, mode, did))
    return Grid(stack, names, lines)


@functools.cache
def on_stacks(failure: Failure) -> dict[str, OnStack]:
    """A failure's broken cells on each named stack, by its name."""
    names = {each.month or each.name: each.name for each in stacks().values()}
    shown: dict[str, list[tuple[Cell, Did | None]]] = {}
    clear: dict[str, list[Cell]] = {}
    words: dict[str, dict[str, list[str]]] = {}
    for cell in measured.outcomes(failure):
        if not cell.broken or cell.world_size != default_world(cell):
            continue
        for each in history.observations_of(failure, cell):
            if (name := names.get(each.stack)) and each.shows is not None:
                if not each.shows:
                    clear.setdefault(name, []).append(cell)
                else:
                    shown.setdefault(name, []).append((cell, each.did))
                    word = symptoms.ENDINGS[each.did.outcome] if each.did else "shows"
                    words.setdefault(name, {}).setdefault(word, []).append(cell.strategy)
    known = {*shown, *clear}
    texts = {
        name: "; ".join(f"{word}: {group_strategies(under, strategies.names())}" for word, under in by_word.items())
        for name, by_word in words.items()
    }
    return {
        n: OnStack(n, tuple(shown.get(n, ())), tuple(clear.get(n, ())), texts.get(n, ""))
        for n in stacks()
        if n in known
    }


def glance(failure: Failure) -> dict[str, list[str]]:
    """How a failure ends under each family of strategies on today's stack, the gravest outcome first: `trains` alone
    where it was run and doesn't show, nothing where nothing was run. In fp32 at the usual world size."""
    outcomes = measured.outcomes(failure)
    shows = {*showing(failure, outcomes)}
    ends: dict[str, set[str]] = {name: set() for name in families()}
    for cell, did in outcomes.items():
        usual = cell.broken and cell.precision == "fp32" and cell.world_size == default_world(cell)
        if usual and (cell in shows or did.outcome == Outcome.TRAINS):
            ends[_family(cell.strategy)].add(did.outcome)
    return {
        name: sorted(found - {Outcome.TRAINS} if len(found) > 1 else found, key=GRAVEST.index)
        for name, found in ends.items()
    }


@functools.cache
def families() -> tuple[str, ...]:
    """The families of strategies, each stage of ZeRO and each FSDP by itself."""
    return tuple(dict.fromkeys(map(_family, strategies.names())))


def _family(strategy: str) -> str:
    return strategy.partition("-")[0]


def _end(cell: Cell, did: Did | None) -> str:
    """The key that the entrance filters by beside a place: the outcome, and all that is seen of it without an error."""
    return f"{did.outcome}/{'|'.join(symptoms.seen_of(cell, did))}" if did else "/"


def _place(failure: Failure, cell: Cell) -> str:
    """The key that the entrance filters by: trainer, strategy, checkpointing and precision; then the variant."""
    trainer = failure.variant(cell.variant).trainer or "scenario"
    return "/".join((trainer, cell.strategy, cell.checkpointing, cell.precision, cell.variant))


def entrance() -> dict[str, object]:
    """The data of the entrance and the comparison: what answers are decided by, and on each stack, by number, the
    places that show each failure, those that don't, where it shows in words, and how each of the first ends."""
    places: dict[str, int] = {}
    ends: dict[str, int] = {}

    def numbers(failure: Failure, cells: Sequence[Cell]) -> list[int]:
        return [places.setdefault(_place(failure, cell), len(places)) for cell in cells]

    known = {
        failure.name: {
            name: [
                numbers(failure, there.shown),
                numbers(failure, there.clear),
                there.text,
                [ends.setdefault(_end(*each), len(ends)) for each in there.ends],
            ]
            for name, there in on_stacks(failure).items()
        }
        for failure in failures().values()
    }
    return {
        "answers": answers.data(),
        "titles": {failure.name: failure.title.replace("`", "") for failure in failures().values()},
        "places": [*places],
        "ends": [*ends],
        "outcomes": GRAVEST[:-1],
        "symptoms": [*symptoms.SYMPTOMS],
        "known": known,
        "stacks": {
            name: {
                "title": each.title,
                "kind": each.kind,
                "named": each.name in requests.named(),
                "versions": _under_test(each),
            }
            for name, each in stacks().items()
        },
    }


def _under_test(stack: Version) -> dict[str, str]:
    return {name: stack.versions[name] for name in STACK if name in stack.versions}


@functools.cache
def pinned_day() -> str:
    """The day by which today's stack was pinned, as git has it; without git, after which month's releases it is."""
    asked = ("git", "log", "-1", "--format=%cs", "--", "requirements.txt")
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        done = None
    newest = [stack.month for stack in measured.months() if stack.month != TODAY][-1]
    return done.stdout.strip() if done and done.stdout.strip() else f"after {newest}"


def stack_title(name: str, month: str) -> str:
    """A month's stack: its day, and its name if that is another, ``2025-03-01 (trl-0.15.2)``."""
    return month if name == month else f"{month} ({name})"
