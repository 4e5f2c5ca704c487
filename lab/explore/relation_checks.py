"""The relations of a search: which hold, what breaks one, and which planted faults do."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from faultline.cells.cell import Cell
from lab.explore import shrinking
from lab.explore.case import Case
from lab.explore.relations import Question
from lab.explore.shrinking import Look, Missing


@dataclass(frozen=True)
class Broken:
    """What breaks a relation, as small as it was made: what is wrong, and in how many of its runs it was."""

    question: Question
    wrong: str
    steady: int = 1
    runs: int = 1

    def as_json(self) -> dict[str, object]:
        """What broken.jsonl holds: the cases of the relation as specs, and what is wrong."""
        question = self.question
        cases = [case.as_json() for case in question.cases]
        return {"relation": question.name, "cases": cases, "apart": self.wrong, "steady": [self.steady, self.runs]}


@dataclass(frozen=True)
class Tally:
    """Of one relation: how many pairs it was asked of and how many held, and how many planted faults broke it."""

    pairs: int = 0
    held: int = 0
    planted: int = 0
    seen: int = 0


@dataclass
class RelationChecks:
    """Relations that wait for results, what became of others, and what breaks one and is to be made small.

    `counts` are by relation, by whether a fault is planted, and by whether it held.
    """

    waiting: list[Question] = field(default_factory=list)
    counts: Counter[tuple[str, bool, bool]] = field(default_factory=Counter)
    large: list[Question] = field(default_factory=list)
    small: dict[Question, str] = field(default_factory=dict)
    again: Counter[tuple[Question, bool]] = field(default_factory=Counter)

    def hold(self, look: Look) -> None:
        """Answer what there are results for."""
        waiting = []
        for question in self.waiting:
            try:
                self.answer(question, look)
            except Missing:
                waiting.append(question)
        self.waiting = waiting

    def answer(self, question: Question, look: Look) -> None:
        """Count a relation; one that is broken, and not by a planted fault, is to be made small."""
        if not question.sketches(look):
            return
        wrong = bool(question.wrong(look))
        self.counts[question.name, bool(question.case.fault), not wrong] += 1
        if wrong and not question.case.fault:
            self.large.append(question)

    def shrink(self, look: Look) -> dict[Cell, Case]:
        """Make small what breaks a relation, as far as there are results; gives the cases that are needed."""
        needed: dict[Cell, Case] = {}
        waiting = []
        for question in self.large:
            try:
                small = smallest(question, look)
                self.small[small] = small.wrong(look)
            except Missing as error:
                needed |= {case.cell: case for case in error.cases}
                waiting.append(question)
        self.large = waiting
        return needed

    def saw_again(self, look: Look) -> None:
        """Results of one more run of what is broken: is it again?"""
        for question in self.asked_again:
            self.again[question, bool(question.wrong(look))] += 1

    @property
    def asked_again(self) -> Iterator[Question]:
        """What is broken, as small as it was made."""
        yield from self.small
        yield from self.large

    def broken(self, look: Look) -> list[Broken]:
        """What breaks a relation."""
        every = self.small | {question: question.wrong(look) for question in self.large}
        again = self.again
        return [
            Broken(each, wrong, 1 + again[each, True], 1 + again[each, True] + again[each, False])
            for each, wrong in every.items()
        ]

    @property
    def tallies(self) -> dict[str, Tally]:
        """What became of each relation, by name."""
        of = self.counts
        return {
            name: Tally(
                pairs=of[name, False, True] + of[name, False, False],
                held=of[name, False, True],
                planted=of[name, True, True] + of[name, True, False],
                seen=of[name, True, False],
            )
            for name in sorted({name for name, _, _ in of})
        }


def smallest(question: Question, look: Look) -> Question:
    """The smallest case that breaks the same relation; raises Missing where results are needed first."""
    small = shrinking.smaller(question.case, lambda case: bool(Question(question.relation, case).wrong(look)))
    return Question(question.relation, small[0]) if small else question
