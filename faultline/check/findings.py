"""The findings of a check: the cells that don't train, grouped if they show one known failure or do the same."""

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from faultline import strategies
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.check.known import Known, fine, moved_by_hand, names_of_facts, place, recognised, share_of_trainers
from faultline.observations import matching, remedies
from faultline.observations.matching import Match
from faultline.observations.measured import Place
from faultline.observations.remedies import Fate
from faultline.observations.wording import normalised
from faultline.ranks.facts import Facts
from faultline.ranks.report import Deviation
from faultline.report.claims import ORDER
from faultline.runs.results import Result

OF_BUFFERS = (Signature.BUFFERS_APART, Signature.BUFFERS_DIFFER)


@dataclass(frozen=True)
class Form:
    """Cells that do the same wrong thing in the same way; `signature` is a known failure's, if it is one, and `where`
    are the places in which that was measured."""

    results: tuple[Result, ...]
    signature: str
    where: frozenset[Place] = frozenset()


@dataclass(frozen=True)
class Group:
    """A problem in all its forms; `match` is the known failure that it is, as far as that is known of all of them,
    `either` those that have the same mechanism or show the same, where no more than that is known."""

    forms: tuple[Form, ...]
    match: Match | None = None
    either: tuple[Match, ...] = ()

    @property
    def results(self) -> list[Result]:
        """The cells of all forms."""
        return [result for form in self.forms for result in form.results]

    @property
    def failure(self) -> Failure | None:
        return self.match.failure if self.match else None

    @functools.cached_property
    def fates(self) -> list[Fate]:
        """Remedies of the known failure as measured where the model shows it, the verified ones first.

        Where it may be another, or another beside it, those of each are listed, with what they help against unless
        they do the same against all.
        """
        by_failure = {match.failure.name: self._fates(match) for match in (self.match, *self.either) if match}
        same = Counter((fate.claim.text, fate.word) for fates in by_failure.values() for fate in fates)
        listed: dict[tuple[str, str], Fate] = {}
        for name, fates in by_failure.items():
            for fate in fates:
                text = fate.claim.text
                if same[text, fate.word] < len(by_failure):
                    text += f", against {name}"
                listed.setdefault((text, fate.word), replace(fate, claim=replace(fate.claim, text=text)))
        return sorted(listed.values(), key=lambda fate: ORDER.index(fate.word))

    @property
    def _without_checkpoints(self) -> bool:
        return all(place(result)[1] == "off" for result in self.results)

    def _fates(self, match: Match) -> list[Fate]:
        by_key: dict[str, list[Fate]] = {}
        of_trainers = share_of_trainers(match.failure) == 1
        facts = set[str]().union(*(names_of_facts(result.checked.facts) for result in self.results))
        out = {remedy for remedy, of in match.failure.recognition.model.excludes.items() if facts & {*of}}
        for form in self.forms:
            signature = form.signature if match is self.match else match.signature
            where = form.where or frozenset(map(place, form.results))
            engines = set(map(strategies.family, {result.cell.strategy for result in form.results}))
            for fate in remedies.fates(match.failure, signature, where):
                # What helps elsewhere may help here too; not what only another engine was given, or only trainers.
                there = fate.scope not in remedies.ELSEWHERE or engines & set(map(strategies.family, fate.strategies))
                # What runs without checkpoints is not mended by another kind of them, or by none.
                swap = fate.claim.swap
                mode = match.mechanism and "checkpointing" in swap and self._without_checkpoints
                excluded = mode or swap.get("remedy") in out
                fits = fate.claim.kind == "helps" and there and not excluded
                if fits and (of_trainers or not fate.in_trainers):
                    by_key.setdefault(fate.key, []).append(fate)
        return matching.worded(map(_together, by_key.values()), match.mechanism)


def _together(fates: Sequence[Fate]) -> Fate:
    """One remedy's fates against several forms of a failure as one, by the cells that are nearest to any."""
    nearest = min((fate.scope for fate in fates), key=remedies.SCOPES.index)
    fates = [fate for fate in fates if fate.scope == nearest]
    speak_for, cells = sum(fate.speak_for for fate in fates), sum(fate.cells for fate in fates)
    word = "verified" if speak_for == cells else "conditional" if speak_for else "refuted"
    return replace(fates[0], word=word, speak_for=speak_for, cells=cells, against=())


def agrees(results: Collection[Result]) -> bool:
    """Whether every cell that could be run does what one process does, and one of several ranks is among them."""
    return decided(results) and all(map(fine, results))


def decided(results: Collection[Result]) -> bool:
    """Whether anything is known of the strategies: some cell goes wrong, or one that a single process isn't ran."""
    ran = [result for result in results if result.outcome != Outcome.IMPOSSIBLE]
    return any(strategies.distributed(result.cell.strategy) for result in ran) or not all(map(fine, ran))


def ran(results: Collection[Result]) -> bool:
    """Whether any cell could be run."""
    return any(result.outcome != "impossible" for result in results)


def groups(results: Collection[Result]) -> list[Group]:
    """The cells that don't train, put together where they show one known failure, or else do the same.

    With them are those that do what one process does, where that is what a known failure does there already.
    """
    by_group: dict[object, dict[tuple[str, str, object], list[tuple[Result, frozenset[Place]]]]] = {}
    known_as: dict[object, list[tuple[Match, tuple[Match, ...]]]] = {}
    for result, (match, either) in _with_known(results):
        form: tuple[str, str, object]
        if match:
            unlike = normalised(result.detail) if match.signature == result.signature == Signature.OTHER else None
            form = (result.outcome, match.signature, unlike or _kinds(result))
            known_as.setdefault(match.failure.name, []).append((match, either))
        elif fine(result):
            continue
        elif result.outcome == "diverges":
            first = result.finding.first
            at = first and (first.phase, first.module)
            form = (result.outcome, "", (at, moved_by_hand(result), _kinds(result)))
        else:  # a hang is one, wherever its ranks were at that moment
            form = (result.outcome, "", "" if result.outcome == Outcome.HANGS else normalised(result.detail))
        by_group.setdefault(match.failure.name if match else form, {}).setdefault(form, []).append(
            (result, match.where if match else frozenset())
        )
    every = []
    for name, by_form in by_group.items():
        forms = sorted((_form(form[1], alike) for form, alike in by_form.items()), key=_of_buffers_alone)
        every.append(Group(tuple(forms), *_weakest(known_as.get(name, ()))))
    return sorted(every, key=lambda group: all(map(_of_buffers_alone, group.forms)))


def _kinds(result: Result) -> tuple[bool, ...]:
    """Whether weights are wrong, and whether buffers are."""
    of_buffers = [cause in OF_BUFFERS for cause in causes(result)]
    return not all(of_buffers), any(of_buffers)


def _of_buffers_alone(form: Form) -> bool:
    """Whether cells are wrong in nothing but buffers, which is less grave than weights."""
    return {*causes(form.results[0])} <= {*OF_BUFFERS}


def causes(result: Result) -> tuple[str, ...]:
    """The signatures of all that is wrong with a cell, the gravest first."""
    return tuple(cause.signature for cause in result.checked.causes) or (result.signature,)


def _with_known(results: Collection[Result]) -> list[tuple[Result, Known]]:
    """Results with what is known of them; an error of one engine is one failure under all of its strategies."""
    named = [(result, recognised(result, results)) for result in results]
    by_error = {_error(result): known for result, known in named if known[0] and result.outcome == Outcome.RAISES}
    return [(result, known if known[0] else by_error.get(_error(result), known)) for result, known in named]


def _error(result: Result) -> tuple[str, str, str]:
    return result.outcome, normalised(result.detail), strategies.family_name(result.cell.strategy)


def _form(signature: str, alike: Sequence[tuple[Result, frozenset[Place]]]) -> Form:
    """Cells that do the same, each with the places in which that was measured."""
    results, places = zip(*alike, strict=True)
    return Form(results, signature, frozenset().union(*places))


def _weakest(known_as: Sequence[tuple[Match, tuple[Match, ...]]]) -> Known:
    """The match of all forms of a failure: it is as sure as the least sure of them.

    One form that is more than its mechanism says that the others are too.
    """
    more = [each for each in known_as if not each[0].mechanism] or list(known_as)
    if not more:
        return None, ()
    sure = matching.LIKELY if any(match.sure == matching.LIKELY for match, _ in more) else matching.CERTAIN
    either = {match.failure.name: match for _, others in more for match in others}
    return replace(more[0][0], sure=sure), tuple(either.values())


def facts_of(results: Sequence[Result]) -> Facts:
    """The facts of one process, on the rows of the most ranks, which differ the most; empty if there are none."""
    return max(results, key=lambda result: (bool(result.checked.facts), result.cell.world_size)).checked.facts


def raising(result: Result) -> list[int]:
    """The ranks that raised a cell's error, where not all of them did."""
    errors = [normalised(f"{rank.error.type}: {rank.error.message}") if rank.error else "" for rank in result.ranks]
    first = errors[result.rank] if result.rank is not None else ""
    ranks = [rank for rank, error in enumerate(errors) if error and error == first]
    return ranks if len(ranks) < len(errors) else []


def worst(result: Result) -> list[Deviation]:
    """The largest error of each parameter that is worst off."""
    by_parameter: dict[str, Deviation] = {}
    for each in result.errors if result.outcome == "diverges" else ():
        by_parameter.setdefault(each.parameter, each)
    return list(by_parameter.values())
