"""From a case that differs to the smallest one that differs alike, and where else that shows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from faultline.catalogue.outcomes import Did
from faultline.explore.case import Case
from faultline.explore.kind import alike
from faultline.programs.program import VALUES, Program
from faultline.releases.search import smallest
from faultline.runs.results import Result

FEW = 2  # features that most of what differs comes down to: all of so many are tried before any search
Look = Callable[[Case], Result]


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
    """Leave out features, then take plainer values, as long as a case still does the same.

    It only looks at results: given the same, it comes to the same. `look` raises Missing for one that isn't there yet.
    """
    wanted = alike(look(case))
    case = replace(case, program=case.pruned)

    def holds(names: Sequence[str]) -> bool:
        return alike(look(replace(case, program=case.program.with_only(names)))) == wanted

    def first(programs: Iterable[Program]) -> Program | None:
        """The first program that does the same, once all of them were run: a round costs more than what is in it."""
        every = [*programs]
        results = all_of([replace(case, program=each) for each in every], look)
        return next((each for each, result in zip(every, results, strict=True) if alike(result) == wanted), None)

    names = tuple(name for name in VALUES if name in case.program.features)
    if not holds(names):
        return Shrunk(case, look(case), {}, minimal=False)
    minimal = True
    for size in range(FEW + 1):
        if program := first(map(case.program.with_only, combinations(names, size))):
            break
    else:
        least = smallest(names, holds)
        program, minimal = case.program.with_only(least.items), least.minimal
    while plainer := first(program.plainer()):
        program = plainer
    case = replace(case, program=program)
    others = [replace(case, strategy=name) for name in strategies]
    where = {other.strategy: result.did for other, result in zip(others, all_of(others, look), strict=True)}
    return Shrunk(case, look(case), where, minimal)


def all_of(cases: Sequence[Case], look: Look) -> list[Result]:
    """The results of several cases; raises Missing for all that aren't there."""
    results: list[Result] = []
    missing: list[Case] = []
    for case in cases:
        try:
            results.append(look(case))
        except Missing as error:
            missing += error.cases
    if missing:
        raise Missing(missing)
    return results
