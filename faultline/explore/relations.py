"""Programs that are to train alike, or by a known factor apart: what needs no process to hold them against."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import FLOOR, TOLERANCE
from faultline.explore.case import Case
from faultline.explore.shrinking import Look, all_of
from faultline.programs import drawing, truth
from faultline.programs.program import VALUES, Program
from faultline.programs.settings import SAMPLING, SETTINGS
from faultline.ranks.report import Measure, Sketch
from faultline.runs.results import Result

SHARE = 0.15  # of the cases
SUMS = ("sgd", "no momentum")
"""Optimizers whose first step is the gradient."""


@dataclass(frozen=True)
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
        if not truth.has(self.where, program.value) or case.strategy == self.strategy:
            return None
        changed = self.replacement(case) if callable(self.replacement) else self.replacement
        wanted = {**program.features, **changed}
        other = drawing.sensible(Program.of(program.seed, wanted))
        made = replace(case, program=other, strategy=self.strategy or case.strategy)
        whole = all(other.value(name) == value for name, value in wanted.items())
        return made if whole and made.possible and made != case else None


@dataclass(frozen=True)
class Pair:
    """A case, and the one that a relation holds it against."""

    relation: Relation
    case: Case
    twin: Case

    @property
    def words(self) -> str:
        return f"{self.relation.name}: {self.case.words}, beside {self.twin.words}"


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


def of(case: Case) -> list[Pair]:
    """The relations that hold a case against another one, with that."""
    twins = [(relation, relation.twin(case)) for relation in RELATIONS]
    return [Pair(relation, case, twin) for relation, twin in twins if twin]


def sketched(result: Result) -> Sketch | None:
    """What is held against others of a case that trained."""
    return result.checked.sketch if result.outcome == Outcome.TRAINS else None


def apart(relation: Relation, case: Case, look: Look) -> str:
    """In which parameter a case and the one that it is held against are apart; empty if they are not, or fail."""
    if not (twin := relation.twin(case)):
        return ""
    one, other = map(sketched, all_of([case, twin], look))
    return broken(one, other, relation, case.cell.precision) if one and other else ""


def off(case: Case, look: Look) -> str:
    """In which step the norm is wrong that an engine logs of a case; empty if it is right, or if none is logged."""
    sketch = sketched(look(case))
    return wrong_norm(sketch, case.cell.precision) if sketch else ""


def chosen(case: Case) -> Pair | None:
    """For one case of several, by chance, a relation that says something of it."""
    choose = random.Random(f"relation/{case.cell.id}")
    pairs = of(case) if choose.random() < SHARE else []
    return choose.choice(pairs) if pairs else None


def broken(one: Sketch, other: Sketch, relation: Relation, precision: str = "fp32") -> str:
    """In which parameter two runs are apart that are to be alike; empty if they are in none."""
    sides = [("gradient", one.gradients, other.gradients, relation.times)]
    if relation.weights:
        sides.append(("weight", one.weights, other.weights, 1.0))
    for kind, here, there, times in sides:
        names = [name for name in here if name in there]
        largest = max((here[name][0] for name in names), default=0.0)
        for name in names:
            if not alike(here[name], there[name], times, largest, precision):
                return f"{kind} of {name}"
    return ""


def alike(one: Measure, other: Measure, times: float, largest: float, precision: str) -> bool:
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
