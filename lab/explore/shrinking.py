"""From a case that differs to the smallest one that differs alike, and where else that shows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from faultline.catalogue.outcomes import Did
from faultline.releases.bisection import smallest
from faultline.runs.results import Result
from lab.explore.case import Case
from lab.explore.fingerprint import alike
from lab.programs import drawing
from lab.programs.program import VALUES, Program

FEW = 2  # features that most of what differs comes down to: all of so many are tried before any search
Look = Callable[[Case], Result]
T = TypeVar("T")


class Missing(Exception):
    """Cases whose results are needed before shrinking can go on."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__(f"{len(cases)} results are missing")
        self.cases = cases


@dataclass(frozen=True)
class Shrunk:
    """The smallest case, what it does, and what its program does under the other strategies.

    `minimal` if no feature can be left out.
    """

    case: Case
    result: Result
    where: Mapping[str, Did]
    minimal: bool


def shrunk(case: Case, look: Look, strategies: Sequence[str]) -> Shrunk:
    """The smallest case that still does the same, under the first of the strategies where it does, and what its program
    does elsewhere.

    It only looks at results: given the same, it comes to the same. `look` raises Missing for one that isn't there yet.
    """
    wanted = alike(look(case))
    case = replace(case, program=case.pruned)
    small = smaller(case, lambda each: alike(look(each)) == wanted)
    if not small:
        return Shrunk(case, look(case), {}, minimal=False)
    case, minimal = small
    others = [replace(case, strategy=name) for name in strategies]
    results = all_of(others, look)
    where = {other.strategy: result.did for other, result in zip(others, results, strict=True)}
    same = (other for other, result in zip(others, results, strict=True) if alike(result) == wanted)
    plainest = next((other for other in same if other.pruned == case.program), case)  # it has all of the settings
    return Shrunk(plainest, look(plainest), where, minimal)


def smaller(case: Case, same: Callable[[Case], bool]) -> tuple[Case, bool] | None:
    """Leave out features, then take plainer values, as long as a case is the `same`; None if it isn't to begin with.

    Also whether no feature can be left out.
    """

    def first(programs: Iterable[Program]) -> Program | None:
        """The first program that is the same, once all of them were run: a round costs more than what is in it."""
        every = [*programs]
        answers = all_of([replace(case, program=each) for each in every], same)
        return next((each for each, answer in zip(every, answers, strict=True) if answer), None)

    if not same(case):
        return None
    names = tuple(name for name in VALUES if name in case.program.features)
    minimal = True
    for size in range(FEW + 1):
        if program := first(map(case.program.with_only, combinations(names, size))):
            break
    else:
        least = smallest(names, lambda some: same(replace(case, program=case.program.with_only(some))))
        program, minimal = case.program.with_only(least.items), least.minimal
    while plainer := first(each for each in program.plainer() if drawing.sensible(each) == each):
        program = plainer
    return replace(case, program=program), minimal


def all_of(cases: Sequence[Case], look: Callable[[Case], T]) -> list[T]:
    """What is seen of several cases; raises Missing for all that aren't there."""
    results: list[T] = []
    missing: list[Case] = []
    for case in cases:
        try:
            results.append(look(case))
        except Missing as error:
            missing += error.cases
    if missing:
        raise Missing(missing)
    return results
