"""Which failures of the catalogue a project may have: their recorded conditions against what is known of it."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from packaging.version import Version

from faultline import strategies
from faultline.audit.arguments import trainers
from faultline.audit.engines import NO, OTHER_TRAINER, YES
from faultline.audit.open_conditions import Open, unmeasured
from faultline.audit.project import Project
from faultline.base.axes import CHECKPOINTING, PRECISIONS
from faultline.catalogue import Failure, Variant
from faultline.catalogue.loading import failures, needs, settings
from faultline.cells.cell import Cell
from faultline.cells.words import group_strategies, in_order, in_words
from faultline.observations import answers, history, measured
from faultline.observations.answers import CellAnswer, DoubtKind
from faultline.observations.ranges import Range

AXES = ("strategy", "checkpointing", "precision")
BELOW = "(the failure is in transformers' Trainer or below)"


@dataclass(frozen=True)
class Case:
    """A way in which a failure may arise in a project: the broken variants, and the cells that show it.

    `among` are all cells of the variants in the places that the project leaves. `holds` are the conditions that hold,
    by what they are about; `open` are those that no file decides. `asks` says whether one of them is code, a trainer
    that nothing names, or a setting that somebody has to make.
    """

    variants: tuple[Variant, ...]
    shown: tuple[Cell, ...]
    among: tuple[Cell, ...]
    holds: tuple[str, ...]
    open: tuple[Open, ...]
    asks: bool

    @property
    def certain(self) -> bool:
        """Whether every recorded condition is known to hold, of which there is one at least."""
        return bool(self.holds) and not self.open

    @property
    def applies(self) -> bool:
        """Whether all conditions hold; or a trainer or need, with a strategy, and neither code, trainer nor setting is
        open. The strategy may be the only open condition of what happens in one process too."""
        named = not {"trainer", *needs()}.isdisjoint(self.holds)
        anywhere = "single" in {cell.strategy for cell in self.shown}
        left_open = {about for condition in self.open for about in condition.about or ("code",)}
        placed = "strategy" in self.holds or (anywhere and left_open == {"strategy"})
        return self.certain or (named and placed and not self.asks)


@dataclass(frozen=True)
class AuditFinding:
    """A failure that nothing known of a project excludes; the surest case first.

    Of several `recipes` of which this is said alike, `project` is the first, and `alike` what is said of each.
    """

    failure: Failure
    cases: tuple[Case, ...]
    project: Project = field(default_factory=Project)
    recipes: tuple[str, ...] = ()
    alike: tuple["AuditFinding", ...] = ()

    @property
    def certain(self) -> bool:
        """Whether every recorded condition of a case is known to hold."""
        return self.cases[0].certain

    @property
    def applies(self) -> bool:
        """Whether a case applies, and not only could."""
        return any(case.applies for case in self.cases)

    @property
    def word(self) -> str:
        """How sure it is."""
        return "certain" if self.certain else "likely" if self.applies else "possible"


def findings(project: Project) -> list[AuditFinding]:
    """Every failure that nothing known excludes, the surest first."""
    reported = (each for each in failures().values() if project.ignored.isdisjoint((each.name, each.id)))
    return surest_first(match for failure in reported if (match := finding(failure, project)))


def surest_first(matches: Iterable[AuditFinding]) -> list[AuditFinding]:
    """Findings in the order in which they are shown."""
    return sorted(matches, key=lambda match: (doubt(match.cases[0]), match.failure.name))


def finding(failure: Failure, project: Project) -> AuditFinding | None:
    """The cases of one failure that a project leaves; None if something known excludes it."""
    broken = [variant for variant in failure.variants if variant.broken]
    cases = [case for variant in broken if (case := _case(failure, variant, project))]
    return AuditFinding(failure, tuple(sorted(_together(cases), key=doubt)), project) if cases else None


def doubt(case: Case) -> tuple[bool, bool, int]:
    """How far a case is from certain, to sort by."""
    return not case.certain, not case.applies, len(case.open)


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
    any_other = bool(unknown) and not (variant.any_trainer and "trainer" in project.left)
    needed = [need for need in variant.needs if project.left.get(need) == YES]
    missing = [need for need in variant.needs if need not in needed]
    whys = {why: cell for cell, (_, why) in states.items() if why}
    undecided = _undecided(failure, variant, shown, [*states], project)
    about = {name for condition in undecided for name in condition.about}
    holds += needed
    holds += [
        axis
        for axis in AXES
        if axis in project.left and axis not in about and _matters(axis, failure, shown, states, project)
    ]
    for cell in shown if not whys else ():
        turns = (answers.fixed(failure, cell), history.turn(failure.history.began, cell))
        holds += [turn.package for turn in turns if turn and turn.package in project.versions]
    unknown += [Open((need,), needs()[need].text) for need in missing]
    unknown += undecided
    unknown += [unmeasured(failure, cell, why, project.versions, project.unused) for why, cell in whys.items()]
    unknown += [Open((), variant.look_for)] if variant.look_for else []
    asks = bool(variant.look_for) or any_other or not all(_by_default(need, project) for need in missing)
    return Case((variant,), tuple(shown), tuple(states), tuple(dict.fromkeys(holds)), tuple(unknown), asks)


def _trainer(failure: Failure, variant: Variant, project: Project) -> tuple[list[str], list[Open]] | None:
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
        return [], [Open(("trainer",), f"one that behaves like {_trainer_names([variant])} {BELOW}")]
    return [], [Open(("trainer",), "")]  # in words once it is known which variants are alike


def _states(failure: Failure, variant: Variant, project: Project) -> dict[Cell, CellAnswer]:
    """Whether each cell in the variant's places shows the failure with the project's releases, or why that isn't known.

    If one does, the cells that weren't measured with such releases say nothing beside it.
    """
    among = [
        cell
        for cell in _places(failure, variant, project)
        if measured.possible(failure, cell) or any(each.shows for each in history.observations_of(failure, cell))
    ]
    states = {cell: _state(failure, cell, project) for cell in among}
    if any(shows for shows, _ in states.values()):
        states = {cell: state for cell, state in states.items() if not state.doubt or state.doubt.kind != DoubtKind.FEW}
    return states


def _state(failure: Failure, cell: Cell, project: Project) -> CellAnswer:
    if (key := (failure.name, cell)) not in project.shows:
        project.shows[key] = answers.behaviour(failure, cell, project.versions)
    return project.shows[key]


def _by_default(need: str, project: Project) -> bool:
    """Whether a setting that no file makes is the default in some release that the project leaves."""
    setting = settings().get(need)
    if not setting or not setting.package:
        return False
    return not project.versions.get(setting.package, Range()).below(Version(setting.default_since))


def _undecided(
    failure: Failure, variant: Variant, shown: Sequence[Cell], among: Sequence[Cell], project: Project
) -> list[Open]:
    """An open condition for each axis where the project leaves values that aren't known to show the failure."""
    run = {cell.checkpointing for cell in measured.outcomes(failure) if cell.variant == variant.name}
    by_axis = {
        "strategy": [
            name for name in project.left.get("strategy", strategies.names()) if not _covers(name, shown, among)
        ],
        "checkpointing": {*project.left.get("checkpointing", CHECKPOINTING)} - {cell.checkpointing for cell in shown},
        "precision": [
            each for each in project.left.get("precision", PRECISIONS) if not _in_precision(each, shown, among)
        ],
    }
    if run == {"off"}:  # it doesn't depend on it
        by_axis["checkpointing"] = []
    differ = tuple(axis for axis, values in by_axis.items() if values)
    shows = {axis: {getattr(cell, axis) for cell in shown} for axis in AXES}
    product = [cell for cell in among if all(getattr(cell, axis) in shows[axis] for axis in AXES)]
    if len(product) > len(shown):  # no axis by itself says where
        return [Open(differ or ("strategy", "checkpointing"), in_words(shown, among))]
    return [Open((axis,), _axis_values(axis, shows[axis])) for axis in differ]


def _covers(name: str, shown: Sequence[Cell], among: Sequence[Cell]) -> bool:
    """Whether a strategy shows the failure, or was not run and is a form of one that does, such as zero3-small."""
    names = {cell.strategy for cell in shown}
    ran = name in {cell.strategy for cell in among}
    return name in names or (not ran and any(name.startswith(f"{each}-") for each in names))


def _in_precision(precision: str, shown: Sequence[Cell], among: Sequence[Cell]) -> bool:
    """Whether the failure shows in a precision; in bf16 as in fp32, where only that was measured."""
    ran = {cell.precision for cell in among}
    return precision in {cell.precision for cell in shown} or (precision == "bf16" and precision not in ran)


def _axis_values(axis: str, values: Collection[str]) -> str:
    """Values of an axis in few words."""
    if axis == "strategy":
        return group_strategies(values, ())
    return " or ".join(in_order(values, CHECKPOINTING if axis == "checkpointing" else PRECISIONS))


def _places(failure: Failure, variant: Variant, project: Project) -> list[Cell]:
    """A variant's usual cells in the places that the project leaves; in bf16 if that was measured.

    A variant that was run with checkpointing off alone doesn't depend on it, and holds in any mode.
    """
    every = [cell for cell in measured.outcomes(failure) if cell.variant == variant.name]
    cells = [cell for cell in every if cell == replace(measured.usual(cell), precision=cell.precision)]
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


def _matters(axis: str, failure: Failure, shown: Sequence[Cell], among: Collection[Cell], project: Project) -> bool:
    """Whether another value of an axis is known not to show the failure, or is a strategy that was not run."""
    cells = measured.outcomes(failure).keys()
    values = {getattr(cell, axis) for cell in cells} - {getattr(cell, axis) for cell in among}
    twins = {replace(cell, **{axis: value}) for cell in shown for value in values} & cells
    if axis == "strategy":
        ran = [cell for cell in cells if cell.variant in {each.variant for each in shown}]
        if not all(_covers(name, ran, ran) for name in strategies.names()):
            return True
    return any(measured.possible(failure, c) and _state(failure, c, project).shows is False for c in twins)


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


def _trainer_names(variants: Sequence[Variant]) -> str:
    """The measured trainers; `trainer` is transformers' own, which the others are built on."""
    names = [variant.trainer for variant in variants if variant.trainer]
    return " or ".join("transformers' own" if name == "trainer" else f"TRL's {name}" for name in names)


def wanted_text(case: Case, condition: Open) -> str:
    """An open condition in words."""
    if condition.wanted or condition.about != ("trainer",):
        return condition.wanted
    if not any(variant.trainer for variant in case.variants):
        return "another one, or a loop of your own"
    others = any(variant.any_trainer for variant in case.variants)
    return _trainer_names(case.variants) + (f", or another one {BELOW}" if others else "")
