"""The search itself: programs are drawn and run, what differs is shrunk, and what is known is set aside."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.runs.results import Result
from faultline.strategies import family_name
from lab.explore import known, relations, shrinking
from lab.explore.case import Case
from lab.explore.findings import Finding
from lab.explore.fingerprint import exact, kind, role, silent
from lab.explore.known import Explains, Known
from lab.explore.relation_checks import Broken, RelationChecks
from lab.explore.relations import Question
from lab.explore.shrinking import Missing, Shrunk
from lab.programs import refusals
from lab.programs.fault import Fault
from lab.programs.program import Program

AT_A_TIME = 30  # cases that are shrunk side by side: what one shows may explain others


class Stage(StrEnum):
    """Where a program or a case has come to, in the words of the funnel."""

    PROGRAMS = "programs drawn"
    KNOWN_BY_FEATURES = "cases known by their features"
    RUN = "cases run"
    NOT_PLANTED = "cases with a planted fault that can't be, or raise"
    IMPOSSIBLE = "cases that can't be"
    INVALID = "cases without evidence"
    DIFFER = "cases that differ"
    KNOWN_BY_RESULT = "of them known by what they do"
    KNOWN_ONCE_SMALL = "of them known once shrunk"
    TRAIN_AGAIN = "of them that train when they run again"


@dataclass(frozen=True)
class Cluster:
    """A difference that nothing known explains, in its smallest form, and how many cases came down to it."""

    shrunk: Shrunk
    cases: int = 1

    @property
    def explains(self) -> Explains:
        """The cases that it explains."""
        case, where = self.shrunk.case, self.shrunk.where
        alike = tuple(name for name, did in where.items() if did == self.shrunk.result.did)
        return Explains(case.words, case.program.chosen, alike or (case.strategy,), case.device)


@dataclass
class Search:
    """What is known so far: results by cell, and what became of each difference.

    `planted` counts planted faults by kind and by how they were seen, with an empty word if not. `once` are cases that
    train when they run again, and what they did. `again` counts further runs of what was found, by whether they did the
    same. `changed` are findings that are kept, and do something else now.
    """

    strategies: Sequence[str]
    earlier: list[Explains] = field(default_factory=list)
    device: str = "cpu"
    results: dict[Cell, Result] = field(default_factory=dict)
    funnel: Counter[Stage] = field(default_factory=Counter)
    clusters: dict[tuple[object, ...], Cluster] = field(default_factory=dict)
    known: dict[Case, Known] = field(default_factory=dict)
    left: list[Case] = field(default_factory=list)
    planted: Counter[tuple[str, str]] = field(default_factory=Counter)
    checks: RelationChecks = field(default_factory=RelationChecks)
    again: Counter[tuple[Cell, bool]] = field(default_factory=Counter)
    changed: dict[str, str] = field(default_factory=dict)
    once: dict[str, str] = field(default_factory=dict)

    def cases_of(self, program: Program, fault: Fault | None = None) -> Iterator[Case]:
        """The cases of a program of which nothing is known before they run."""
        self.funnel[Stage.PROGRAMS] += 1
        earlier = [*self.earlier, *(each.explains for each in self.clusters.values() if each.shrunk.minimal)]
        for name in self.strategies:
            case = Case(program, name, fault, self.device)
            if not case.possible:
                continue
            if known.by_features(case, earlier):
                self.funnel[Stage.KNOWN_BY_FEATURES] += 1
            elif not fault or refusals.injectable(program.spec, fault, name):
                yield case
                question = relations.draw(case)
                if question and question.twin and not known.by_features(question.twin, earlier):
                    self.checks.waiting.append(question)
                    yield question.twin

    def look(self, case: Case) -> Result:
        """A case's result; raises Missing where there is none yet."""
        if result := self.results.get(case.cell):
            return result
        raise Missing([case])

    def take(self, results: Iterable[Result]) -> None:
        """Results of cells that ran."""
        self.results |= {result.cell: result for result in results}

    @property
    def asked_again(self) -> list[Case]:
        """The cases that are to run again: those of what was found, and of the relations that are broken."""
        asked = [case for question in self.checks.asked_again for case in question.cases]
        return [*dict.fromkeys([*(each.shrunk.case for each in self.clusters.values()), *asked])]

    def saw_again(self, results: Mapping[Cell, Result]) -> None:
        """The results of one more run of what was asked again: did all of it do the same?"""
        for each in self.clusters.values():
            cell = each.shrunk.case.cell
            if cell in results:
                self.again[cell, exact(results[cell]) == exact(self.results[cell])] += 1
        self.checks.saw_again(lambda case: results[case.cell])

    def replay(self, replayed: Iterable[Finding]) -> None:
        """Hold findings that ran anew against what was seen of them."""
        for finding in replayed:
            before, now = finding.seen.where[finding.case.strategy], str(self.results[finding.case.cell].did)
            if now != before:
                self.changed[finding.name] = f"{before} before, {now} now"
        self.earlier = [each for each in self.earlier if each.name not in self.changed]

    def sort(self, cases: Sequence[Case]) -> None:
        """Set apart those of a chunk that differ for no reason that is known."""
        for case in cases:
            result = self.results.get(case.cell)
            if not result:
                continue
            self.funnel[Stage.RUN] += 1
            if case.fault and result.outcome not in (Outcome.IMPOSSIBLE, Outcome.RAISES, Outcome.CRASHES):
                unseen = result.outcome in (Outcome.TRAINS, Outcome.INVALID)
                self.planted[case.fault.kind, "" if unseen else result.signature or result.outcome] += 1
            elif case.fault:  # an error may be the program's, with or without a fault
                self.funnel[Stage.NOT_PLANTED] += 1
            elif result.outcome == Outcome.IMPOSSIBLE:
                self.funnel[Stage.IMPOSSIBLE] += 1
            elif result.outcome == Outcome.INVALID:
                self.funnel[Stage.INVALID] += 1
                self.left.append(case)
            elif result.outcome == Outcome.TRAINS:
                self.checks.answer(Question(None, case), self.look)
            else:
                self.funnel[Stage.DIFFER] += 1
                if why := known.by_result(case, result, self.earlier):
                    self.known[case] = why
                    self.funnel[Stage.KNOWN_BY_RESULT] += 1
                else:
                    self.left.append(case)
        self.checks.hold(self.look)

    def shrink(self) -> list[Case]:
        """Shrink what differs, the simplest first, as far as there are results; gives the cases that are needed."""
        needed: dict[Cell, Case] = {}
        self.left.sort(key=lambda case: len(case.pruned.chosen))
        waiting: list[Case] = []
        for place, case in enumerate(self.left):
            if len(waiting) == AT_A_TIME:
                waiting += self.left[place:]
                break
            if (earlier := self._explained(case)) is not None:
                self._count(earlier)
                continue
            try:
                self._add(case, shrinking.shrunk(case, self.look, self.strategies))
            except Missing as error:
                needed |= {each.cell: each for each in error.cases}
                waiting.append(case)
        self.left = waiting
        needed |= self.checks.shrink(self.look)
        return list(needed.values())

    @property
    def broken(self) -> list[Broken]:
        """What breaks a relation, and what is wrong with it."""
        return self.checks.broken(self.look)

    @property
    def findings(self) -> list[Cluster]:
        """The findings: what did the same whenever it ran."""
        return [each for each in self.clusters.values() if not self.again[each.shrunk.case.cell, False]]

    @property
    def unsteady(self) -> list[Cluster]:
        """What did something else when it ran again: a race, or a machine that was too slow."""
        return [each for each in self.clusters.values() if self.again[each.shrunk.case.cell, False]]

    def runs(self, cluster: Cluster) -> int:
        """How often what was found ran."""
        return 1 + sum(self.again[cluster.shrunk.case.cell, same] for same in (True, False))

    @property
    def silent(self) -> int:
        """How many findings raise nothing."""
        return sum(silent(each.shrunk.result) for each in self.findings)

    @property
    def small(self) -> int:
        """To how many differences the cases came down that nothing explained before."""
        return len(self.clusters) + self.funnel[Stage.KNOWN_ONCE_SMALL]

    @property
    def planted_seen(self) -> int:
        return sum(number for (_, seen), number in self.planted.items() if seen)

    @property
    def planted_by_kind(self) -> dict[str, dict[str, int]]:
        """How often a planted fault of each kind was seen, by how; with an empty word, how often it wasn't."""
        kinds = sorted({kind for kind, _ in self.planted})
        return {kind: {how: n for (each, how), n in sorted(self.planted.items()) if each == kind} for kind in kinds}

    def _explained(self, case: Case) -> tuple[object, ...] | None:
        """The key of what was found that a case has all features of, if it does the same."""
        did = self.results[case.cell].did
        return next(
            (key for key, each in self.clusters.items() if each.shrunk.result.did == did and each.explains.holds(case)),
            None,
        )

    def _add(self, case: Case, shrunk: Shrunk) -> None:
        """Take what a case came down to: a finding, what is known, or nothing, if it trains when it runs again."""
        if shrunk.result.outcome == Outcome.TRAINS:
            self.once[case.words] = kind(self.results[case.cell])
            self.funnel[Stage.TRAIN_AGAIN] += 1
            return
        case, result = shrunk.case, shrunk.result
        by_features = known.by_features(case, self.earlier)
        if why := by_features or known.by_result(case, result, self.earlier):
            self.known[shrunk.case] = why
            self.funnel[Stage.KNOWN_ONCE_SMALL] += 1
            return
        key = key_of(shrunk)
        if key in self.clusters:
            self._count(key)
        else:
            self.clusters[key] = Cluster(shrunk)

    def _count(self, key: tuple[object, ...]) -> None:
        """One more case comes down to what was found."""
        self.clusters[key] = replace(self.clusters[key], cases=self.clusters[key].cases + 1)


def key_of(shrunk: Shrunk) -> tuple[object, ...]:
    """By which two differences are one: features, family, kind, and where in the model it shows."""
    names = tuple(name for name, _ in shrunk.case.program.chosen)
    return (names, family_name(shrunk.case.strategy), kind(shrunk.result), role(shrunk.result))
