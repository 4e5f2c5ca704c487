"""The findings of a check: the cells that don't train, grouped if they show one known failure or do the same."""

import functools
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace

from faultline.base.errors import UsageError
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.observations import matching, measured, remedies
from faultline.observations.matching import Hints, Match, in_place
from faultline.observations.measured import Place
from faultline.observations.remedies import Fate
from faultline.observations.wording import normalised
from faultline.ranks.report import Deviation, Facts
from faultline.report.remedies import ORDER
from faultline.runs.results import Result

# What a cell's comparison with one process shows, and what follows from it: more than what a model is like.
COMPARED = {
    "over_ranks": "every step is the right one divided by the number of ranks: an average is taken twice",
    "bypassed": "the loss calls the model itself, and never the wrapper that the strategy put around it",
}
KNOWN_FACTS = {*COMPARED, *(each.name for each in fields(Facts))}
UNMOVED = Did("diverges", "unmoved")
CUT_OFF = "no input of a reentrant checkpoint requires a gradient, so no weight inside it gets one"

Known = tuple[Match | None, tuple[Match, ...]]
"""The known failure that a cell shows, and those that it may be as well."""


@dataclass(frozen=True)
class Form:
    """Cells that do the same wrong thing in the same way; `signature` is a known failure's, if it is one."""

    results: tuple[Result, ...]
    signature: str


@dataclass(frozen=True)
class Group:
    """What is wrong, in all its forms; `match` is the known failure that it is, as far as that is known of all of them,
    `either` those that have the same mechanism or show the same, where no more than that is known."""

    forms: tuple[Form, ...]
    match: Match | None = None
    either: tuple[Match, ...] = ()

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

    def _fates(self, match: Match) -> list[Fate]:
        by_key: dict[str, list[Fate]] = {}
        for form in self.forms:
            signature = form.signature if match is self.match else match.signature
            for fate in remedies.fates(match.failure, signature, frozenset(map(place, form.results)))[0]:
                if fate.claim.kind == "helps":
                    by_key.setdefault(fate.key, []).append(fate)
        return matching.worded(map(_together, by_key.values()), match.mechanism)


def _together(fates: Sequence[Fate]) -> Fate:
    """One remedy's fates against several forms of a failure as one."""
    speak_for, cells = sum(fate.speak_for for fate in fates), sum(fate.cells for fate in fates)
    word = "verified" if speak_for == cells else "conditional" if speak_for else "refuted"
    return replace(fates[0], word=word, speak_for=speak_for, cells=cells, against=())


def fine(result: Result) -> bool:
    return result.outcome in ("trains", "impossible")


def agrees(results: Collection[Result]) -> bool:
    """Whether every cell that could be run does what one process does, and there is one."""
    return ran(results) and all(map(fine, results))


def ran(results: Collection[Result]) -> bool:
    """Whether any cell could be run."""
    return any(result.outcome != "impossible" for result in results)


def groups(results: Collection[Result]) -> list[Group]:
    """The cells that don't train, put together where they show one known failure, or else do the same.

    With them are those that do what one process does, where that is what a known failure does there already.
    """
    by_group: dict[object, dict[tuple[str, str, object], list[Result]]] = {}
    known_as: dict[object, list[tuple[Match, tuple[Match, ...]]]] = {}
    for result in results:
        form: tuple[str, str, object]
        match, either = recognised(result)
        if match:
            form = (result.outcome, match.signature, None)
            known_as.setdefault(match.failure.name, []).append((match, either))
        elif fine(result):
            continue
        elif result.outcome == "diverges":
            difference = result.finding.first
            form = (result.outcome, "", difference and (difference.phase, difference.module))
        else:
            form = (result.outcome, "", normalised(result.detail))
        by_group.setdefault(match.failure.name if match else form, {}).setdefault(form, []).append(result)
    return [
        Group(tuple(Form(tuple(alike), form[1]) for form, alike in forms.items()), *_weakest(known_as.get(group, ())))
        for group, forms in by_group.items()
    ]


def _weakest(known_as: Sequence[tuple[Match, tuple[Match, ...]]]) -> Known:
    """What is known of all forms of a failure: it is as sure as the least sure of them.

    One form that is more than its mechanism says that the others are too.
    """
    more = [each for each in known_as if not each[0].mechanism] or list(known_as)
    if not more:
        return None, ()
    sure = matching.LIKELY if any(match.sure == matching.LIKELY for match, _ in more) else matching.CERTAIN
    either = {match.failure.name: match for _, others in more for match in others}
    return replace(more[0][0], sure=sure), tuple(either.values())


def recognised(result: Result) -> Known:
    """The known failure that a cell shows, and those with its mechanism, or that show the same, where no more is known.

    By its error, as `diagnose` does; without one, by what the model needs for it and what was measured in its place.
    What its comparison shows decides before what the model is like.
    """
    if fine(result):
        return _alone(result), ()
    if result.outcome == "raises":
        return _by_error(result)
    did = result.did
    if compared := _doing(did, place(result), result.checked.shows):
        return compared[0], compared[1:]
    alike = _doing(did, place(result), seen(result.checked.facts))
    return (alike[0] if alike else _cut_off_here(result)), ()  # what a model is like shows no more than one


def _by_error(result: Result) -> Known:
    facts, (strategy, mode) = result.checked.facts, place(result)
    traceback = next((rank.error.traceback for rank in result.ranks if rank.error), "")
    hints = Hints(frozenset([strategy]), frozenset([mode]), {}, in_place(traceback, strategy, mode))
    fits = [match for match in matching.fitting(result.detail, hints) if match.sure]
    # A parameter in a block that is cut off takes part in the loss: it is no other failure's.
    cut = cut_off(facts)
    unused = tuple(name for name in facts.no_gradient if name not in cut)
    names = seen(replace(facts, no_gradient=unused)).union(result.checked.shows)
    if fitting := [match for match in fits if fits_model(match.failure, names)]:
        return fitting[0], matching.sharing(fitting[0], fitting) if cut else ()
    for match in fits:
        # Their words, and nothing that the model could be asked for; not those that only a remedy leads to.
        if not match.failure.recognition.model.any_of and measured.shown_by_itself(match.failure, match.signature):
            return replace(match, sure=matching.LIKELY), matching.sharing(match, fits)
    return None, ()


def _doing(did: Did, where: Place, names: Collection[str]) -> tuple[Match, ...]:
    """The failures that need one of these facts, and of which a cell does this there."""
    fitting = [f for f in failures().values() if fits_model(f, names) and _measured(f, did, where)]
    fitting.sort(key=_share_of_trainers)  # a model that is checked has none
    by = {f.name: next(fact for fact in f.recognition.model.any_of if fact in names) for f in fitting}
    return tuple(Match(f, did.signature, matching.LIKELY, where=frozenset([where]), by=by[f.name]) for f in fitting)


def as_silent(result: Result) -> list[Failure]:
    """The failures that are as silent in a cell's place, those that are no trainer's first."""
    there = [f for f in failures().values() if place(result) in measured.silent(f, {result.signature})]
    return sorted(there, key=_share_of_trainers)


def _alone(result: Result) -> Match | None:
    """The known failure that one process shows already where a cell agrees with it: weights that never move, because
    the model's own checkpoints cut them off."""
    facts = result.checked.facts
    if result.outcome != "trains" or result.cell.checkpointing != "off" or not cut_off(facts):
        return None
    fitting = _doing(UNMOVED, ("single", facts.checkpointing), seen(Facts(frozen_input=facts.frozen_input)))
    return replace(fitting[0], mechanism=CUT_OFF) if fitting else None


def _cut_off_here(result: Result) -> Match | None:
    """As `_alone`, of reentrant checkpoints that a cell asks for: where all that never move is in blocks whose inputs
    require no gradient, it is the same mechanism, also under a strategy in which the failure was not measured."""
    blocks = tuple(f"{block}." for block in result.checked.facts.frozen_input)
    unmoved = result.finding.unmoved
    if result.did != UNMOVED or place(result)[1] != "reentrant" or not all(n.startswith(blocks) for n in unmoved):
        return None
    fitting = _doing(UNMOVED, ("single", "reentrant"), seen(Facts(frozen_input=result.checked.facts.frozen_input)))
    return replace(fitting[0], where=frozenset([place(result)]), mechanism=CUT_OFF) if fitting else None


def cut_off(facts: Facts) -> list[str]:
    """The parameters without a gradient in blocks that the model's own reentrant checkpoints cut off."""
    blocks = facts.frozen_input if facts.checkpointing == "reentrant" else ()
    return [name for name in facts.no_gradient if name.startswith(tuple(f"{block}." for block in blocks))]


def place(result: Result) -> Place:
    """Where a cell was run: a model that checkpoints by itself does so where nothing was asked for."""
    mode = result.cell.checkpointing
    return result.cell.strategy, result.checked.facts.checkpointing if mode == "off" else mode


def _share_of_trainers(failure: Failure) -> float:
    broken = [variant for variant in failure.variants if variant.broken]
    return sum(bool(variant.trainer) for variant in broken) / len(broken)


def _measured(failure: Failure, did: Did, where: Place) -> bool:
    """Whether a cell of a failure does this in a place, and it is the failure's own; a checkpointing mode in which none
    of its cells was run says nothing."""
    cells = measured.outcomes(failure)
    strategy, mode = where
    modes = {mode} & {cell.checkpointing for cell in cells} or {cell.checkpointing for cell in cells}
    there = (cells[cell] for cell in cells if cell.strategy == strategy and cell.checkpointing in modes)
    return did.signature not in failure.also_raises and did in there


def seen(facts: Facts) -> frozenset[str]:
    """The names of the facts that hold of a model."""
    return frozenset(each.name for each in fields(facts) if getattr(facts, each.name))


def fits_model(failure: Failure, names: Collection[str]) -> bool:
    """Whether a model has something that a failure needs."""
    return any(fact in names for fact in failure.recognition.model.any_of)


def check_facts(catalogue: Collection[Failure]) -> None:
    """Refuse a failure that is recognised by a fact that there isn't: it would never be."""
    for failure in catalogue:
        if unknown := {*failure.recognition.model.any_of} - KNOWN_FACTS:
            raise UsageError(f"repros/{failure.name}: no fact of a model is called {', '.join(sorted(unknown))}")


def facts_of(results: Sequence[Result]) -> Facts:
    """What was seen in one process, on the rows of the most ranks, which differ the most; empty if nothing was."""
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
