"""Programs that are to train alike, or by a known factor apart: what needs no process to hold them against."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import FLOOR, TOLERANCE
from faultline.ranks.report import Measure, Sketch
from faultline.runs.results import Result
from lab.explore.case import Case
from lab.explore.shrinking import Look, all_of
from lab.programs import drawing, refusals
from lab.programs.program import VALUES, Program
from lab.programs.settings import SAMPLING, SETTINGS

SHARE = 0.15  # of the cases
SUMS = ("sgd", "no momentum")
"""Optimizers whose first step is the gradient."""


@dataclass(frozen=True, eq=False)  # known by its name, and hashable
class Relation:
    """A program that has `where` trains as one that has `replacement` in its place, its gradients so many `times`.

    The replacement may be a function of the case. `strategy` is that of the other one, if it isn't the same. `weights`
    says whether these are alike too.
    """

    name: str
    where: Mapping[str, Any]
    replacement: Mapping[str, Any] | Callable[[Case], Mapping[str, Any]] = field(default_factory=dict)
    times: float = 1.0
    strategy: str = ""
    weights: bool = True

    def twin(self, case: Case) -> Case | None:
        """The case that a case is to be held against; None where the relation says nothing of it."""
        program = case.program
        if not refusals.has(self.where, program.value) or case.strategy == self.strategy:
            return None
        changed = self.replacement(case) if callable(self.replacement) else self.replacement
        wanted = {**program.features, **changed}
        other = drawing.sensible(Program.of(program.seed, wanted))
        made = replace(case, program=other, strategy=self.strategy or case.strategy)
        whole = all(other.value(name) == value for name, value in wanted.items())
        return made if whole and made.possible and made != case else None


@dataclass(frozen=True)
class Question:
    """Whether a relation holds of a case; without a relation, whether its engine logs the norm that its gradients have.

    A case with a planted fault is held against one that is healthy.
    """

    relation: Relation | None
    case: Case

    @property
    def name(self) -> str:
        return self.relation.name if self.relation else "logged norms"

    @cached_property
    def twin(self) -> Case | None:
        """The case that the case is held against, if it is one."""
        return self.relation.twin(replace(self.case, fault=None)) if self.relation else None

    @property
    def cases(self) -> list[Case]:
        """The cases whose results answer it."""
        return [self.case, self.twin] if self.twin else [self.case]

    @property
    def words(self) -> str:
        return f"{self.name}: {', beside '.join(case.words for case in self.cases)}"

    def sketches(self, look: Look) -> list[Sketch]:
        """What its cases did; empty if one of them went wrong by itself, or logs no norms."""
        results = all_of(self.cases, look)
        every = [sketched(result, case) for result, case in zip(results, self.cases, strict=True)]
        whole = [each for each in every if each and (each.logged or self.relation)]
        return whole if len(whole) == len(every) == (2 if self.relation else 1) else []

    def wrong(self, look: Look) -> str:
        """What breaks the relation; empty if nothing does, or nothing can be said of it."""
        sketches, precision = self.sketches(look), self.case.cell.precision
        if not sketches:
            return ""
        if not self.relation:
            return wrong_norm(sketches[0], precision)
        return broken(sketches[0], sketches[1], self.relation, precision)


def joined(case: Case) -> Mapping[str, Any]:
    """One micro-batch of all rows that a case has in several."""
    return {"accumulate": 1, "joined": case.program.value("accumulate")}


def usual_settings(case: Case) -> Mapping[str, Any]:
    """The settings of a case as they are by default, but for those that change what is computed."""
    neutral = [name for name in case.pruned.features if name in SETTINGS and SETTINGS[name].neutral]
    if case.program.trainer in SAMPLING:
        neutral = [name for name in neutral if name != "trainer.eval_on_start"]
    return {name: SETTINGS[name].values[0] for name in neutral}


NO_STATE = {"state": "none"}
IN_BETWEEN = ("evaluation", "inference", "generation")
DRAWS_NOTHING = tuple(name for name in VALUES["through"] if name not in SAMPLING)
PLAIN = {"accumulating": "engine", "backward": "whole", **NO_STATE}
# An adapter's weights are drawn.
NOTHING_USES = {"spare": True, "spare_runs": "never", "optimizer": SUMS, "adapter": "none"}
RELATIONS: Sequence[Relation] = (
    Relation("micro-batches", {"accumulate": (2, 3), "joined": 1, "branch": "none", **PLAIN}, joined),
    Relation("ranks swapped", {"branch": "none", "silent": False, "world_size": 2, **NO_STATE}, {"swapped": True}),
    Relation("world sizes", {"world_size": (1, 4), **NO_STATE}, {"world_size": 2}),
    Relation("recomputation", {"recompute": ("last block", "every block")}, {"recompute": "nothing"}),
    Relation("checkpointing", {"checkpointing": ("non-reentrant", "reentrant")}, {"checkpointing": "off"}),
    Relation("settings", {}, usual_settings),
    Relation(
        "loss scaled",
        {"clip": "none", "optimizer": SUMS, "life": "straight"},
        {"scaled": True},
        times=2.0,
        weights=False,
    ),
    Relation("reloading", {"between": ("saving", "reloading")}, {"between": "nothing"}),
    Relation("evaluation", {"between": IN_BETWEEN, "through": DRAWS_NOTHING}, {"between": "nothing"}),
    Relation("a part that nothing uses", NOTHING_USES, {"spare": False}),
    Relation("frozen without a gradient", NOTHING_USES, {"spare_frozen": True}),
    Relation("tied by hand", {"tied": "head", "hook": "none"}, {"tying": "by hand"}),
    Relation("engines", {}, strategy="ddp"),
)


def of(case: Case) -> list[Question]:
    """The relations that hold a case against another one."""
    asked = (Question(relation, case) for relation in RELATIONS)
    return [question for question in asked if question.twin]


def sketched(result: Result, case: Case) -> Sketch | None:
    """What is held against others of a case that trained, or in which a fault is planted."""
    return result.checked.sketch if result.outcome == Outcome.TRAINS or case.fault else None


def draw(case: Case) -> Question | None:
    """A relation that says something of a case, by chance: of some cases, and of all with a planted fault."""
    choose = random.Random(f"relation/{case.cell.id}")
    asked = of(case) if case.fault or choose.random() < SHARE else []
    return choose.choice(asked) if asked else None


def broken(one: Sketch, other: Sketch, relation: Relation, precision: str = "fp32") -> str:
    """In which parameter two runs are apart that are to be alike; empty if they are in none."""
    sides = [("gradient", one.gradients, other.gradients, relation.times)]
    if relation.weights:
        sides.append(("weight", one.weights, other.weights, 1.0))
    for kind, here, there, times in sides:
        names = [name for name in here if name in there]
        largest = max((here[name][0] for name in names), default=0.0)
        for name in names:
            if not same_measure(here[name], there[name], times, largest, precision):
                return f"{kind} of {name}"
    return ""


def same_measure(one: Measure, other: Measure, times: float, largest: float, precision: str) -> bool:
    """Whether two tensors have the same norm and direction, one of them so many times the other.

    What is small beside the largest of its run is held against a part of that, as rounding is.
    """
    size = max(abs(times) * one[0], other[0], FLOOR[precision] * largest * abs(times))
    return all(abs(times * a - b) <= TOLERANCE[precision] * size * 2 for a, b in zip(one, other, strict=True))


def wrong_norm(sketch: Sketch, precision: str = "fp32") -> str:
    """The first step in which an engine logs another norm of all gradients than they have; empty if there is none."""
    for step, (norm, logged) in enumerate(zip(sketch.norms, sketch.logged, strict=False), 1):
        if not math.isclose(norm, logged, rel_tol=TOLERANCE[precision]):
            return f"step {step}: the engine says that the norm is {logged:.4g}, and it is {norm:.4g}"
    return ""
