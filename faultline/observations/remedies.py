"""What became of claims and remedies, on the stack that shows a failure or where somebody needs one."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from faultline.base.packages import TODAY
from faultline.catalogue import REMEDIES, Claim, Failure
from faultline.catalogue.outcomes import SILENT
from faultline.cells import claims
from faultline.cells.cell import Cell
from faultline.cells.claims import Outcomes, Verdict
from faultline.cells.words import order, places
from faultline.observations import answers, measured
from faultline.observations.measured import Place, place


@dataclass(frozen=True)
class Judged:
    """A claim's verdict, what the cells do that say most of it, and on which stacks if these aren't the run's."""

    verdict: Verdict
    where: tuple[str, ...]
    stacks: tuple[str, ...] = ()


def tested_on(failure: Failure, claim: Claim) -> str:
    """The stack whose broken cells put a claim to the test: the older one of an upgrade, or if today's can't tell."""
    if not failure.reported:
        return TODAY
    if "stack" in claim.swap or claims.verdict(failure, claim, measured.outcomes(failure)).word == "untested":
        return failure.reported.stack
    return measured.shown_on(failure)


def recorded_verdict(failure: Failure, claim: Claim) -> Verdict:
    """How a claim fares on the stack that puts it to the test, as far as that was measured."""
    there = tested_on(failure, claim)
    others = measured.outcomes(failure, claim.swap.get("stack", there))
    return claims.verdict(failure, claim, measured.outcomes(failure, there), others)


def judge_claim(failure: Failure, claim: Claim) -> Judged:
    """How a claim fares by what was measured before, and on which stacks if not today's."""
    verdict, there = recorded_verdict(failure, claim), tested_on(failure, claim)
    other = claim.swap.get("stack", there)
    texts = describe_outcomes(failure, verdict, measured.outcomes(failure, other))
    return Judged(verdict, tuple(texts), () if there == TODAY else tuple(dict.fromkeys((there, other))))


def describe_outcomes(failure: Failure, verdict: Verdict, observed: claims.Outcomes) -> list[str]:
    """The cells that say most of a claim, one text for each outcome: those against it, or those that it changes.

    What was observed is that of the swapped cells, where these are of another stack.
    """
    cells = (*verdict.supporting, *verdict.against)
    cells_shown = verdict.supporting if verdict.claim.kind == "changes" else verdict.against
    # A claim that proposes a cell is contradicted by what that cell does.
    judged = {
        cell: claims.swapped(failure, verdict.claim.swap, cell) if verdict.claim.swap else cell for cell in cells_shown
    }
    by_outcome: dict[str, list[Cell]] = {}
    for cell in sorted(judged, key=order):
        by_outcome.setdefault(str(observed[judged[cell]]), []).append(cell)
    return [
        outcome if len(there) == len(cells) else f"{outcome} under {', '.join(places(there, cells))}"
        for outcome, there in by_outcome.items()
    ]


def first_remedy(failure: Failure) -> str:
    """The first verified remedy in the order of the record, else the first conditional one; empty if none helps."""
    words = {
        claim.text: recorded_verdict(failure, claim).word for claim in failure.claims.values() if claim.kind in REMEDIES
    }
    verified = [text for text, word in words.items() if word == "verified"]
    conditional = [f"in some places: {text}" for text, word in words.items() if word == "conditional"]
    return next(iter(verified + conditional), "")


SCOPES = ("there", "there in other words", "elsewhere", "other words")
"""Which cells a remedy was held against, the nearest to somebody's first: see `fates`."""
ELSEWHERE = SCOPES[2:]


@dataclass(frozen=True)
class Fate:
    """What became of a remedy where somebody needs it: how many cells support it, how many there are.

    `against` has what the cells do that contradict it, with their places if these are not all; `scope` says where
    they were run (see `fates`), `strategies` under which, and `in_trainers` that all were in a trainer.
    """

    key: str
    claim: Claim
    word: str
    speak_for: int
    cells: int
    against: tuple[str, ...]
    scope: str = "there"
    strategies: frozenset[str] = frozenset()
    in_trainers: bool = False


def as_json(fate: Fate) -> dict[str, object]:
    """A remedy's fate as every command prints it in JSON."""
    return {
        "claim": fate.claim.text,
        "kind": fate.claim.kind,
        "verdict": fate.word,
        "for": fate.speak_for,
        "cells": fate.cells,
        "instead": list(fate.against),
        "source": fate.claim.source,
    }


def fates(
    failure: Failure, signature: str, where: Collection[Place], versions: Mapping[str, str] | None = None
) -> list[Fate]:
    """Remedies and what became of them, by the cells that they were held against.

    The first of these scopes in which a cell shows what a remedy does: ``there``, this signature in these places;
    ``there in other words``, any signature of the failure in these places; ``elsewhere``, this signature in any
    place; ``other words``, all cells. The rules for somebody's versions count, if they have this signature at all.
    """
    relevant, known = answers.outcomes_with(failure, versions or {})
    if relevant and not any(did[1] == signature for did in known.values()):
        known = measured.outcomes(failure, measured.shown_on(failure))
    same = [cell for cell, did in known.items() if did[1] == signature]
    scopes: tuple[Callable[[], list[Cell]], ...] = (
        lambda: [cell for cell in same if place(cell) in where],
        lambda: in_other_words(failure, signature, where, known),
        lambda: same,
        lambda: [*known],
    )
    for scope, cells in zip(SCOPES, scopes, strict=True):
        if results := fates_of(failure, cells(), known):
            return [replace(fate, scope=scope) for fate in results]
    return []


def in_other_words(failure: Failure, signature: str, where: Collection[Place], known: Outcomes) -> list[Cell]:
    """The cells in these places that show the failure, each with another error, with none, or by the end of a rank."""
    others = {*failure.errors} - {signature, *failure.also_raises}
    return [
        cell
        for cell, (outcome, word) in known.items()
        if place(cell) in where and (word in others if outcome == "raises" else outcome in (*SILENT, "crashes"))
    ]


def fates_of(failure: Failure, chosen: Collection[Cell], known: Outcomes | None = None) -> list[Fate]:
    """What became of each remedy that some of these cells put to the test; upgrades are fixes and left out.

    `known` is what cells do: without it, what they do on the stack that shows the failure.
    """
    known = known or measured.outcomes(failure, measured.shown_on(failure))
    return [
        fate
        for key, claim in failure.claims.items()
        if claim.kind in (*REMEDIES, "detects")
        and "stack" not in claim.swap
        and (fate := _fate(failure, key, claim, known, chosen))
    ]


def _fate(failure: Failure, key: str, claim: Claim, known: Outcomes, chosen: Collection[Cell]) -> Fate | None:
    held = claims.verdict(
        failure, claim, known, cells=[cell for cell in chosen if not _dies(failure, claim, cell, known)]
    )
    pro, contra = len(held.supporting), len(held.against)
    if not pro and not contra:
        return None
    every = (*held.supporting, *held.against)
    under = frozenset(cell.strategy for cell in every)
    in_trainers = all(failure.variant(cell.variant).trainer for cell in every)
    against = tuple(describe_outcomes(failure, held, known))
    return Fate(key, claim, held.word, pro, pro + contra, against, strategies=under, in_trainers=in_trainers)


def _dies(failure: Failure, claim: Claim, cell: Cell, known: Outcomes) -> bool:
    """Whether a remedy ends the process by a signal where the failure doesn't: on a CPU, which says nothing of GPUs."""
    proposed = known.get(claims.swapped(failure, claim.swap, cell), known[cell])
    return proposed.outcome == "crashes" != known[cell].outcome
