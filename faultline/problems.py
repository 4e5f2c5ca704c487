"""What a check found: the cells that don't train, put together where they show one known failure, or do the same."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from faultline import known, matching
from faultline.catalogue import Failure, failures
from faultline.hints import Hints
from faultline.known import Fate, Place
from faultline.results import Result
from faultline.wording import normalised

# What a cell's comparison with one process shows, and what follows from it: more than what a model is like.
COMPARED = {
    "over_ranks": "every weight moves as far as it should divided by the number of ranks: an average is taken twice",
    "bypassed": "the loss never calls the wrapper that the strategy put around the model, only what is inside of it",
}
UNRECOGNISED = (None, "", "", ())
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
    """What is wrong, in all its forms; `failure` is the known one that it is, `sure` how sure that is, and `either`
    are others that show the same."""

    forms: tuple[Form, ...]
    failure: Failure | None = None
    sure: str = ""
    either: tuple[Failure, ...] = ()

    @functools.cached_property
    def fates(self) -> list[Fate]:
        """Remedies of the known failure as measured where the model shows it, the verified ones first."""
        by_key: dict[str, list[Fate]] = {}
        for form in self.forms if self.failure else ():
            for fate in known.fates(self.failure, form.signature, form.places)[0]:  # type: ignore[arg-type]
                if fate.claim.kind == "helps":
                    by_key.setdefault(fate.key, []).append(fate)
        return sorted(map(_together, by_key.values()), key=lambda fate: WORDS.index(fate.word))


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
    matches: dict[tuple[Any, ...], tuple[Failure | None, str, tuple[Failure, ...]]] = {}
    for result in results:
        if fine(result):
            continue
        failure, signature, sure, others = recognised(result)
        at = (result["first"].get("phase"), result["first"].get("module"))
        words = normalised(result["detail"]) if result["outcome"] != "diverges" else at
        form = (result["outcome"], signature, "" if failure else words)
        group = (failure.name, sure) if failure else form
        found.setdefault(group, {}).setdefault(form, []).append(result)
        before = matches[group][2] if group in matches else ()
        matches[group] = failure, sure, tuple(dict.fromkeys((*before, *others)))
    return [
        Group(tuple(Form(tuple(own), form[1]) for form, own in forms.items()), *matches[group])
        for group, forms in found.items()
    ]


def recognised(result: Result) -> tuple[Failure | None, str, str, tuple[Failure, ...]]:
    """The known failure that a cell shows, or None, its signature and how sure that is, then failures that fit as well.

    By its error, as `diagnose` does; without one, by what the model needs for it and what was measured in its place.
    What its comparison shows decides before what the model is like.
    """
    facts, where = result["facts"], (result["strategy"], result["checkpointing"])
    if result["outcome"] == "raises":
        error: dict[str, Any] = next((rank["error"] for rank in result["ranks"] if rank["error"]), {})
        context = f"{error.get('traceback', '')}\n{result['strategy']}"
        hints = Hints(frozenset(where[:1]), frozenset(where[1:]), {}, context)
        fits = [match for match in matching.fitting(result["detail"], hints) if match.sure]
        for match in fits:
            if fits_model(match.failure, facts | dict.fromkeys(result["shows"], True)):
                return match.failure, match.signature, match.sure, ()
        # Their words, and nothing that the model could be asked for; not those that only a remedy leads to.
        alone = (m for m in fits if not m.failure.found_by and known.shown_by_itself(m.failure, m.signature))
        found = next(alone, None)
        return (found.failure, found.signature, matching.LIKELY, ()) if found else UNRECOGNISED
    did = result["outcome"], result["signature"]
    for seen in (dict.fromkeys(result["shows"], True), facts):
        fitting = [f for f in failures().values() if fits_model(f, seen) and _measured(f, did, where)]
        fitting.sort(key=_in_trainers)  # a model that is checked has none
        if fitting:
            return fitting[0], did[1], matching.LIKELY, () if seen is facts else tuple(fitting[1:])
    return UNRECOGNISED


def _in_trainers(failure: Failure) -> bool:
    """Whether a failure is that of trainers alone."""
    return all(variant.trainer for variant in failure.variants if variant.broken)


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
