"""What became of each remedy where somebody needs it: verified, refuted or conditional, by the cells that tell."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from faultline.catalogue import REMEDIES, Claim, Failure
from faultline.catalogue.outcomes import SILENT
from faultline.cells import claims
from faultline.cells.cell import Cell
from faultline.cells.claims import Outcomes
from faultline.observations import measured
from faultline.observations.measured import Place, place
from faultline.observations.verdicts import where

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
    relevant, known = measured.with_versions(failure, versions or {})
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
        if results := remedies(failure, cells(), known):
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


def remedies(failure: Failure, chosen: Collection[Cell], known: Outcomes | None = None) -> list[Fate]:
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
    held = claims.verdict(failure, claim, known, cells=[cell for cell in chosen if not _dies(failure, claim, cell, known)])
    pro, contra = len(held.supporting), len(held.against)
    if not pro and not contra:
        return None
    every = (*held.supporting, *held.against)
    under = frozenset(cell.strategy for cell in every)
    in_trainers = all(failure.variant(cell.variant).trainer for cell in every)
    against = tuple(where(failure, held, known))
    return Fate(key, claim, held.word, pro, pro + contra, against, strategies=under, in_trainers=in_trainers)


def _dies(failure: Failure, claim: Claim, cell: Cell, known: Outcomes) -> bool:
    """Whether a remedy ends the process by a signal where the failure doesn't: on a CPU, which says nothing of GPUs."""
    proposed = known.get(claims.swapped(failure, claim.swap, cell), known[cell])
    return proposed.outcome == "crashes" != known[cell].outcome
