"""What a check found: the cells that don't train, put together where they show one known failure, or do the same."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from faultline import known, matching
from faultline.catalogue import Failure, failures
from faultline.hints import Hints, in_place
from faultline.known import Fate, Place
from faultline.matching import Match
from faultline.results import Result
from faultline.wording import normalised

# What a cell's comparison with one process shows, and what follows from it: more than what a model is like.
COMPARED = {
    "over_ranks": "every weight moves as far as it should divided by the number of ranks: an average is taken twice",
    "bypassed": "the loss never calls the wrapper that the strategy put around the model, only what is inside of it",
}
WORDS = ("verified", "conditional", "refuted")


@dataclass(frozen=True)
class Form:
    """Cells that do the same wrong thing in the same way; `signature` is a known failure's, if it is one."""

    results: tuple[Result, ...]
    signature: str

    @property
    def places(self) -> frozenset[Place]:
        return frozenset((result["strategy"], result["checkpointing"]) for result in self.results)


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

    @property
    def sure(self) -> str:
        return self.match.sure if self.match else ""

    @functools.cached_property
    def fates(self) -> list[Fate]:
        """Remedies of the known failure as measured where the model shows it, the verified ones first."""
        by_key: dict[str, list[Fate]] = {}
        for form in self.forms if self.failure else ():
            for fate in known.fates(self.failure, form.signature, form.places)[0]:  # type: ignore[arg-type]
                if fate.claim.kind == "helps":
                    by_key.setdefault(fate.key, []).append(fate)
        fates = matching.worded(map(_together, by_key.values()), self.match.mechanism if self.match else "")
        return sorted(fates, key=lambda fate: WORDS.index(fate.word))


def _together(fates: Sequence[Fate]) -> Fate:
    """One remedy's fates against several forms of a failure as one."""
    speak_for, cells = sum(fate.speak_for for fate in fates), sum(fate.cells for fate in fates)
    word = "verified" if speak_for == cells else "conditional" if speak_for else "refuted"
    return replace(fates[0], word=word, speak_for=speak_for, cells=cells)


def fine(result: Result) -> bool:
    return result["outcome"] in ("trains", "impossible")


def agrees(results: Collection[Result]) -> bool:
    """Whether every cell that could be run does what one process does, and there is one."""
    return ran(results) and all(map(fine, results))


def ran(results: Collection[Result]) -> bool:
    """Whether any cell could be run."""
    return any(result["outcome"] != "impossible" for result in results)


def groups(results: Collection[Result]) -> list[Group]:
    """The cells that don't train, put together where they show one known failure, or else do the same."""
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], list[Result]]] = {}
    known_as: dict[tuple[Any, ...], list[tuple[Match, tuple[Match, ...]]]] = {}
    for result in results:
        if fine(result):
            continue
        match, either = recognised(result)
        at = (result["first"].get("phase"), result["first"].get("module"))
        words = normalised(result["detail"]) if result["outcome"] != "diverges" else at
        form = (result["outcome"], match.signature if match else "", "" if match else words)
        group = (match.failure.name,) if match else form
        found.setdefault(group, {}).setdefault(form, []).append(result)
        known_as.setdefault(group, []).extend([(match, either)] if match else [])
    return [
        Group(tuple(Form(tuple(own), form[1]) for form, own in forms.items()), *_weakest(known_as[group]))
        for group, forms in found.items()
    ]


def _weakest(known_as: Sequence[tuple[Match, tuple[Match, ...]]]) -> tuple[Match | None, tuple[Match, ...]]:
    """What is known of all forms of a failure: it is as sure as the least sure of them.

    One form that is more than its mechanism says that the others are too.
    """
    more = [each for each in known_as if not each[0].mechanism] or list(known_as)
    if not more:
        return None, ()
    sure = matching.LIKELY if any(match.sure == matching.LIKELY for match, _ in more) else matching.CERTAIN
    either = {match.failure.name: match for _, others in more for match in others}
    return replace(more[0][0], sure=sure), tuple(either.values())


def recognised(result: Result) -> tuple[Match | None, tuple[Match, ...]]:
    """The known failure that a cell shows, and those with its mechanism, or that show the same, where no more is known.

    By its error, as `diagnose` does; without one, by what the model needs for it and what was measured in its place.
    What its comparison shows decides before what the model is like.
    """
    facts, where = result["facts"], (result["strategy"], result["checkpointing"])
    shown = dict.fromkeys(result["shows"], True)
    if result["outcome"] == "raises":
        error: dict[str, Any] = next((rank["error"] for rank in result["ranks"] if rank["error"]), {})
        context = in_place(error.get("traceback", ""), *where)
        hints = Hints(frozenset(where[:1]), frozenset(where[1:]), {}, context)
        fits = [match for match in matching.fitting(result["detail"], hints) if match.sure]
        for match in fits:
            if fits_model(match.failure, facts | shown):
                return match, ()
        # Their words, and nothing that the model could be asked for; not those that only a remedy leads to.
        alone = (m for m in fits if not m.failure.found_by and known.shown_by_itself(m.failure, m.signature))
        found = next(alone, None)
        return (replace(found, sure=matching.LIKELY), matching.sharing(found, fits)) if found else (None, ())
    for facts_seen in (shown, facts):
        fitting = _showing(result, facts_seen)
        if fitting:  # what a model is like tells no more than one
            return fitting[0], () if facts_seen is facts else fitting[1:]
    return None, ()


def _showing(result: Result, facts: dict[str, Any]) -> tuple[Match, ...]:
    """The failures that need one of these facts, and of which a cell in the same place does the same."""
    did, where = (result["outcome"], result["signature"]), (result["strategy"], result["checkpointing"])
    fitting = [f for f in failures().values() if fits_model(f, facts) and _measured(f, did, where)]
    fitting.sort(key=_in_trainers)  # a model that is checked has none
    by = {f.name: next(fact for fact in f.found_by if facts.get(fact)) for f in fitting}
    return tuple(Match(f, did[1], matching.LIKELY, where=frozenset([where]), by=by[f.name]) for f in fitting)


def _in_trainers(failure: Failure) -> float:
    """The share of a failure's broken variants that are trainers'."""
    broken = [variant for variant in failure.variants if variant.broken]
    return sum(bool(variant.trainer) for variant in broken) / len(broken)


def _measured(failure: Failure, did: tuple[str, str], where: Place) -> bool:
    """Whether a cell of a failure does this in a place, and it is the failure's own; a checkpointing mode in which none
    of its cells was run says nothing."""
    cells = known.outcomes(failure)
    strategy, mode = where
    modes = {mode} & {cell.checkpointing for cell in cells} or {cell.checkpointing for cell in cells}
    there = (told for cell, told in cells.items() if cell.strategy == strategy and cell.checkpointing in modes)
    return did[1] not in failure.elsewhere and did in there


def fits_model(failure: Failure, facts: dict[str, Any]) -> bool:
    """Whether a model has something that a failure needs."""
    return any(facts.get(fact) for fact in failure.found_by)


def facts_of(results: Sequence[Result]) -> dict[str, Any]:
    """What was seen in one process, on the rows of the most ranks, which differ the most; empty if nothing was."""
    return max(results, key=lambda result: (bool(result["facts"]), result["world_size"]))["facts"]
