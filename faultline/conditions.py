"""Which failures of the catalogue a setup has: their recorded conditions held against what is known of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from faultline import history, known, matrix, report, samples, strategies
from faultline.catalogue import BY_DEFAULT, NEEDS, Failure, Variant, failures
from faultline.matrix import CHECKPOINTING, Cell
from faultline.ranges import Range
from faultline.settings import OWN
from faultline.setups import Setup

PLACES = ("strategy", "checkpointing", "precision")
MECHANISM = "another trainer, or a loop of your own"
ANOTHER = "another one that is built on transformers' Trainer, where it goes wrong"
LIKE = "which is built on transformers' Trainer as well, where it goes wrong or below"


@dataclass(frozen=True)
class Case:
    """A way in which a failure may arise in a setup: the broken variants, and the cells that show it.

    `among` are all cells of the variants in the places that the setup leaves. `holds` are conditions that
    are known to hold, by what they are about; `open` are those that nobody told. `asks` says whether one of these is
    code, or a setting that somebody has to make.
    """

    variants: tuple[Variant, ...]
    shown: tuple[Cell, ...]
    among: tuple[Cell, ...]
    holds: tuple[str, ...]
    open: tuple[str, ...]
    asks: bool

    @property
    def applies(self) -> bool:
        """Whether all holds, or the strategy and a trainer or need that the files name, and nothing else is asked."""
        named = "strategy" in self.holds and not {"trainer", *NEEDS}.isdisjoint(self.holds)
        return not self.open or (named and not self.asks)


@dataclass(frozen=True)
class Finding:
    """A failure that a setup has for all that is known; the surest case first."""

    failure: Failure
    cases: tuple[Case, ...]

    @property
    def sure(self) -> bool:
        """Whether every recorded condition is known to hold."""
        return not self.cases[0].open

    @property
    def applies(self) -> bool:
        """Whether it is more than what could be: what the files say of it holds, and it takes nothing of the code."""
        return any(case.applies for case in self.cases)


def findings(setup: Setup) -> list[Finding]:
    """Every failure that nothing known excludes, the surest first."""
    found = []
    for failure in failures().values():
        cases = [case for variant in _broken(failure, setup) if (case := _case(failure, variant, setup))]
        if cases:
            together = sorted(_together(cases), key=lambda case: len(case.open))
            found.append(Finding(failure, tuple(together)))
    return sorted(found, key=lambda finding: (len(finding.cases[0].open), finding.failure.name))


def _broken(failure: Failure, setup: Setup) -> list[Variant]:
    """The variants that show the failure in the trainers that the setup leaves.

    A trainer that the failure was measured in is that variant's; any other may run the bare mechanism, or what goes
    wrong in any trainer.
    """
    broken = [variant for variant in failure.variants if variant.broken]
    left = setup.left.get("trainer")
    if left is None:
        return broken
    measured = {variant.trainer for variant in broken}
    return [v for v in broken if v.trainer in left or (bool(left - measured) and (v.any_trainer or not v.trainer))]


def _case(failure: Failure, variant: Variant, setup: Setup) -> Case | None:
    """One variant in a setup; None where something known excludes it, or nothing in its places shows the failure."""
    holds: list[str] = []
    unknown: list[str] = []
    trainer = setup.left.get("trainer")
    measured = {v.trainer for v in failure.variants if v.broken and v.trainer}
    if measured:
        only = trainer is not None and (trainer == {variant.trainer} if variant.trainer else not trainer & measured)
        if not only:
            built = variant.any_trainer and trainer is not None and OWN not in trainer
            unknown.append(f"your trainer does as {_named([variant])}, {LIKE}" if built else "trainer")
        elif variant.trainer:
            holds.append("trainer")
    for need in variant.needs:
        told = setup.left.get(need)
        if told == frozenset(["no"]):
            return None
        (holds if told == frozenset(["yes"]) else unknown).append(need)
    among = [cell for cell in _places(failure, variant, setup) if history.possible(failure, cell)]
    states = {cell: history.state(failure, cell, setup.versions) for cell in among}
    if any(shows for shows, _ in states.values()):  # then those say nothing that weren't measured with such versions
        states = {
            cell: told for cell, told in states.items() if told[1] not in (history.TODAY_ONLY, history.NOT_BEFORE)
        }
    shown = [cell for cell, (shows, _) in states.items() if shows is not False]
    if not shown:
        return None
    holds += [axis for axis in PLACES if axis in setup.left and _holds(axis, failure, shown, states, setup)]
    if len(shown) < len(states):
        unknown.append(_differs(shown, list(states)))
    whys = dict.fromkeys(why for shows, why in states.values() if shows is None)
    unknown += whys
    turns = [t for cell in shown for t in (history.fixed(failure, cell), samples.turn(failure.began, cell)) if t]
    packages = [turn.package for turn in turns if turn.package in setup.versions]
    holds += dict.fromkeys(packages) if not whys else []
    unknown += [variant.look] if variant.look else []
    made = [need for need in variant.needs if need in unknown and not _by_default(need, setup)]
    asks = bool(variant.look or made)
    return Case((variant,), tuple(shown), tuple(states), tuple(holds), tuple(unknown), asks)


def _by_default(need: str, setup: Setup) -> bool:
    """Whether a setting that no file makes is there by default, in some release that the setup leaves."""
    package, since = BY_DEFAULT.get(need, ("", ""))
    return bool(package) and not setup.versions.get(package, Range()).below(Version(since))


def _differs(shown: Sequence[Cell], among: Sequence[Cell]) -> str:
    """What sets some of many cells apart: their modes alone, if that is all, else their places."""
    modes = {cell.checkpointing for cell in shown}
    if len(shown) == sum(cell.checkpointing in modes for cell in among):
        return f"checkpointing is {' or '.join(report.ordered(modes, CHECKPOINTING))}"
    return f"it trains under {in_words(shown, among)}"


def in_words(shown: Sequence[Cell], among: Sequence[Cell]) -> str:
    """The places of some of many cells; bf16 is named only where it makes a difference."""
    plain = {replace(cell, precision="fp32") for cell in shown}
    alike = {p for p in plain if all((c in shown) for c in among if replace(c, precision="fp32") == p)}
    kept = [*alike, *(cell for cell in shown if replace(cell, precision="fp32") not in alike)]
    cells = {replace(cell, precision="fp32") for cell in among} | {*kept}
    names = {cell.strategy for cell in cells}
    every = "any strategy" if len(names) == len(strategies.names()) else report.grouped(names, ())
    return re.sub(r"all \d+ strategies", every, "; ".join(report.places(kept, cells)))


def _places(failure: Failure, variant: Variant, setup: Setup) -> list[Cell]:
    """A variant's cells at the default world size where the setup leaves them; in bf16 where that was measured.

    What was run with checkpointing off alone has nothing to do with it, and holds in any mode.
    """
    mine = [c for c in known.outcomes(failure) if c.variant == variant.name and c.world_size == matrix.default_world(c)]
    measured = {cell.checkpointing for cell in mine}
    modes = measured if measured == {"off"} else setup.left.get("checkpointing", measured)
    cells = {
        cell
        for cell in mine
        if cell.strategy in setup.left.get("strategy", (cell.strategy,)) and cell.checkpointing in modes
    }
    precision = setup.left.get("precision")
    if precision == frozenset(["bf16"]):
        cells = {cell for cell in cells if cell.precision == "bf16" or replace(cell, precision="bf16") not in cells}
    elif precision == frozenset(["fp32"]):
        cells = {cell for cell in cells if cell.precision == "fp32"}
    return [cell for cell in mine if cell in cells]


def _holds(axis: str, failure: Failure, shown: Sequence[Cell], among: Collection[Cell], setup: Setup) -> bool:
    """Whether what is known of an axis is a condition that holds: whatever is left of it shows the failure, and
    with something else instead some cell wouldn't."""
    if {getattr(cell, axis) for cell in shown} != {getattr(cell, axis) for cell in among}:
        return False
    told = known.outcomes(failure)
    values = {getattr(cell, axis) for cell in told} - {getattr(cell, axis) for cell in among}
    twins = {replace(cell, **{axis: value}) for cell in shown for value in values} & told.keys()
    return any(history.possible(failure, c) and history.state(failure, c, setup.versions)[0] is False for c in twins)


def _together(cases: Sequence[Case]) -> list[Case]:
    """Cases that only differ in their trainer as one."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        places = frozenset((c.strategy, c.checkpointing, c.precision) for c in case.shown)
        groups.setdefault((case.holds, case.open, places, bool(case.variants[0].trainer)), []).append(case)
    return [
        Case(
            tuple(v for case in own for v in case.variants),
            tuple(c for case in own for c in case.shown),
            tuple(c for case in own for c in case.among),
            own[0].holds,
            own[0].open,
            own[0].asks,
        )
        for own in groups.values()
    ]


def _named(variants: Sequence[Variant]) -> str:
    """The trainers that something was measured in; `trainer` is the one that the others are built on."""
    names = [variant.trainer for variant in variants if variant.trainer]
    return " or ".join("transformers' own" if name == "trainer" else f"TRL's {name}" for name in names)


def words(case: Case, condition: str) -> str:
    """An open condition, as the rest of a sentence that begins with ``if``."""
    if condition == "trainer":
        if not any(variant.trainer for variant in case.variants):
            return f"what trains is {MECHANISM}"
        like = any(variant.any_trainer for variant in case.variants)
        return f"the trainer is {_named(case.variants)}" + (f", or {ANOTHER}" if like else "")
    return f"there is {NEEDS[condition]}" if condition in NEEDS else condition
