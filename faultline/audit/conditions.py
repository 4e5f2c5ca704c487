"""Which failures of the catalogue a project may have: their recorded conditions against what is known of it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from faultline import strategies
from faultline.audit.arguments import trainers
from faultline.audit.engines import NO, OTHER_TRAINER, YES
from faultline.audit.project import Project
from faultline.catalogue import Failure, Variant
from faultline.catalogue.loading import failures, needs, settings
from faultline.cells.cell import CHECKPOINTING, PRECISIONS, Cell, default_world
from faultline.cells.words import in_words, ordered
from faultline.observations import history, measured, releases
from faultline.observations.ranges import Range

PLACES = ("strategy", "checkpointing", "precision")
BELOW = "(the failure is in transformers' Trainer or below)"


@dataclass(frozen=True)
class Case:
    """A way in which a failure may arise in a project: the broken variants, and the cells that show it.

    `among` are all cells of the variants in the places that the project leaves. `holds` are the conditions that hold,
    by what they are about; `open` are the ones that no file states. `asks` says whether one of these is code, or a
    setting that somebody has to make.
    """

    variants: tuple[Variant, ...]
    shown: tuple[Cell, ...]
    among: tuple[Cell, ...]
    holds: tuple[str, ...]
    open: tuple[str, ...]
    asks: bool

    @property
    def applies(self) -> bool:
        """Whether all conditions hold; or the strategy and a trainer or need, and neither code nor setting is open."""
        named = "strategy" in self.holds and not {"trainer", *needs()}.isdisjoint(self.holds)
        return not self.open or (named and not self.asks)


@dataclass(frozen=True)
class Finding:
    """A failure that nothing known of a project excludes; the surest case first."""

    failure: Failure
    cases: tuple[Case, ...]

    @property
    def sure(self) -> bool:
        """Whether every recorded condition is known to hold."""
        return not self.cases[0].open

    @property
    def applies(self) -> bool:
        """Whether a case applies, and not only could."""
        return any(case.applies for case in self.cases)


def findings(project: Project) -> list[Finding]:
    """Every failure that nothing known excludes, the surest first."""
    matches = []
    for failure in failures().values():
        broken = [variant for variant in failure.variants if variant.broken]
        if cases := [case for variant in broken if (case := _case(failure, variant, project))]:
            matches.append(Finding(failure, tuple(sorted(_together(cases), key=lambda case: len(case.open)))))
    return sorted(matches, key=lambda finding: (len(finding.cases[0].open), finding.failure.name))


def _case(failure: Failure, variant: Variant, project: Project) -> Case | None:
    """One variant in a project; None if something known excludes it, or nothing in its places shows the failure."""
    trainer = _trainer(failure, variant, project)
    if trainer is None or any(project.left.get(need) == NO for need in variant.needs):
        return None
    states = _states(failure, variant, project)
    shown = [cell for cell, (shows, _) in states.items() if shows is not False]
    if not shown:
        return None
    holds, unknown = trainer
    needed = [need for need in variant.needs if project.left.get(need) == YES]
    missing = [need for need in variant.needs if need not in needed]
    whys = dict.fromkeys(why for shows, why in states.values() if shows is None)
    holds += needed
    holds += [axis for axis in PLACES if axis in project.left and _holds(axis, failure, shown, states, project)]
    for cell in shown if not whys else ():
        turns = (releases.fixed(failure, cell), history.turn(failure.history.began, cell))
        holds += [turn.package for turn in turns if turn and turn.package in project.versions]
    unknown += missing
    if len(shown) < len(states):
        unknown.append(_differs(shown, [*states]))
    unknown += [*whys, variant.look_for] if variant.look_for else whys
    asks = bool(variant.look_for) or not all(_by_default(need, project) for need in missing)
    return Case((variant,), tuple(shown), tuple(states), tuple(dict.fromkeys(holds)), tuple(unknown), asks)


def _trainer(failure: Failure, variant: Variant, project: Project) -> tuple[list[str], list[str]] | None:
    """The trainer as a condition that holds, and as an open one; None if the project's trainers exclude the variant.

    A trainer that the failure was measured in is that variant's; any other may run the bare mechanism, or what goes
    wrong in any trainer.
    """
    left = project.left.get("trainer", trainers())
    measured = {each.trainer for each in failure.variants if each.broken and each.trainer}
    runs_in_others = variant.any_trainer or not variant.trainer
    if variant.trainer not in left and not (runs_in_others and left - measured):
        return None
    if not measured or (not variant.trainer and not left & measured):
        return [], []
    if left == {variant.trainer}:
        return ["trainer"], []
    if variant.any_trainer and OTHER_TRAINER not in left:
        return [], [f"your trainer behaves like {_named([variant])} {BELOW}"]
    return [], ["trainer"]


def _states(failure: Failure, variant: Variant, project: Project) -> dict[Cell, tuple[bool | None, str]]:
    """Whether each cell in the variant's places shows the failure with the project's releases, or why that isn't known.

    If one does, the cells that weren't measured with such releases say nothing beside it.
    """
    among = [cell for cell in _places(failure, variant, project) if releases.possible(failure, cell)]
    states = {cell: releases.state(failure, cell, project.versions) for cell in among}
    if any(shows for shows, _ in states.values()):
        unmeasured = (releases.TODAY_ONLY, releases.NOT_BEFORE)
        states = {cell: state for cell, state in states.items() if state[1] not in unmeasured}
    return states


def _by_default(need: str, project: Project) -> bool:
    """Whether a setting that no file makes is the default in some release that the project leaves."""
    setting = settings().get(need)
    if not setting or not setting.package:
        return False
    return not project.versions.get(setting.package, Range()).below(Version(setting.default_since))


def _differs(shown: Sequence[Cell], among: Sequence[Cell]) -> str:
    """The condition that separates some of many cells: their modes if that is all, else their places."""
    modes = {cell.checkpointing for cell in shown}
    if len(shown) == sum(cell.checkpointing in modes for cell in among):
        return f"checkpointing is {' or '.join(ordered(modes, CHECKPOINTING))}"
    return f"it trains under {in_words(shown, among)}"


def _places(failure: Failure, variant: Variant, project: Project) -> list[Cell]:
    """A variant's cells at the default world size in the places that the project leaves; in bf16 if that was measured.

    A variant that was run with checkpointing off alone doesn't depend on it, and holds in any mode.
    """
    cells = [c for c in measured.outcomes(failure) if c.variant == variant.name and c.world_size == default_world(c)]
    run = {cell.checkpointing for cell in cells}
    modes = run if run == {"off"} else project.left.get("checkpointing", run)
    names = project.left.get("strategy", strategies.names())
    left = [cell for cell in cells if cell.strategy in names and cell.checkpointing in modes]
    precision = project.left.get("precision", PRECISIONS)
    if "fp32" not in precision:
        return [cell for cell in left if cell.precision == "bf16" or replace(cell, precision="bf16") not in left]
    if "bf16" not in precision:
        return [cell for cell in left if cell.precision == "fp32"]
    return left


def _holds(axis: str, failure: Failure, shown: Sequence[Cell], among: Collection[Cell], project: Project) -> bool:
    """Whether an axis is a condition that holds: all values that are left show the failure, and another doesn't."""
    if {getattr(cell, axis) for cell in shown} != {getattr(cell, axis) for cell in among}:
        return False
    cells = measured.outcomes(failure).keys()
    values = {getattr(cell, axis) for cell in cells} - {getattr(cell, axis) for cell in among}
    twins = {replace(cell, **{axis: value}) for cell in shown for value in values} & cells
    return any(
        releases.possible(failure, c) and releases.state(failure, c, project.versions)[0] is False for c in twins
    )


def _together(cases: Sequence[Case]) -> list[Case]:
    """Cases that only differ in their trainer as one."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        places = frozenset((c.strategy, c.checkpointing, c.precision) for c in case.shown)
        groups.setdefault((case.holds, case.open, places, bool(case.variants[0].trainer)), []).append(case)
    return [
        replace(
            alike[0],
            variants=tuple(v for case in alike for v in case.variants),
            shown=tuple(c for case in alike for c in case.shown),
            among=tuple(c for case in alike for c in case.among),
        )
        for alike in groups.values()
    ]


def _named(variants: Sequence[Variant]) -> str:
    """The measured trainers; `trainer` is transformers' own, which the others are built on."""
    names = [variant.trainer for variant in variants if variant.trainer]
    return " or ".join("transformers' own" if name == "trainer" else f"TRL's {name}" for name in names)


def words(case: Case, condition: str) -> str:
    """An open condition, as the rest of a sentence that begins with ``if``."""
    if condition != "trainer":
        return f"there is {needs()[condition]}" if condition in needs() else condition
    if not any(variant.trainer for variant in case.variants):
        return "you train with another trainer, or a loop of your own"
    others = any(variant.any_trainer for variant in case.variants)
    rest = f", or another one {BELOW}" if others else ""
    return f"the trainer is {_named(case.variants)}{rest}"
