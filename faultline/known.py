"""What is known of a failure without a run at hand: its blessed rules, the timeline, the recorded errors."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from packaging.version import Version

from faultline import bootstrap, claims, expectations, matrix, ranges, report, runner, stacks, timeline
from faultline.catalogue import REMEDIES, ROOT, Claim, Failure, failures
from faultline.claims import Outcomes, Verdict
from faultline.matrix import Cell, Selection
from faultline.report import one_line
from faultline.server import STACK
from faultline.stacks import TODAY
from faultline.wording import same_error

ERRORS = ROOT / "fixtures" / "errors" / "errors.jsonl"
RAN = ERRORS.with_name("ran.json")

WORDS = 200  # characters by which an error is known again

Place = tuple[str, str]
"""A strategy and a checkpointing mode."""


@dataclass(frozen=True)
class Fate:
    """What became of a remedy where somebody needs it: how many cells speak for it, how many there are.

    `instead` has what the cells do that speak against it, with the places where these are not all.
    """

    key: str
    claim: Claim
    word: str
    speak_for: int
    cells: int
    instead: tuple[str, ...]


def as_json(fate: Fate) -> dict[str, Any]:
    """A remedy's fate for machines, as every command tells it."""
    return {
        "claim": fate.claim.text,
        "kind": fate.claim.kind,
        "verdict": fate.word,
        "for": fate.speak_for,
        "cells": fate.cells,
        "instead": list(fate.instead),
        "source": fate.claim.source,
    }


@functools.cache
def pinned() -> dict[str, str]:
    """The versions of today's stack, as requirements.txt pins them."""
    pins = everything_pinned()
    return {name: pins[name] for name in STACK if name in pins}


@functools.cache
def everything_pinned() -> dict[str, str]:
    """All that requirements.txt pins, by name."""
    return bootstrap.pinned(ROOT / "requirements.txt")


@functools.cache
def outcomes(failure: Failure, stack: str = TODAY) -> Outcomes:
    """What every cell of the default matrix does on a stack of stacks/: its rules, which a run was held against."""
    return ruled(failure, pinned() | bootstrap.pinned(stacks.named()[stack]))


def ruled(failure: Failure, versions: Mapping[str, str]) -> Outcomes:
    """What every cell of the default matrix does with these versions, as the rules have it."""
    rules = runner.rules(failure)
    found = {}
    for cell in matrix.select({failure.name: failure}, Selection(failure=(failure.name,))):
        told = expectations.expect(rules, cell, versions)
        found[cell] = (told.outcome, told.signatures[0] if told.signatures else "")
    return found


def theirs(failure: Failure, versions: Mapping[str, str]) -> tuple[dict[str, str], Outcomes]:
    """Those of somebody's releases by which a failure's rules tell cells apart, and what cells do with them."""
    asked = {package for rule in runner.rules(failure) for package, _ in rule.versions}
    own = {name: version for name, version in versions.items() if name in asked and ranges.is_version(version)}
    shown = shown_on(failure)
    return own, ruled(failure, pins(shown) | own) if own else outcomes(failure, shown)


def shown_on(failure: Failure) -> str:
    """The stack that shows a failure: today's, or the one it was reported on where today's shows none of it."""
    if failure.reported and not claims.showing(failure, outcomes(failure)):
        return failure.reported.stack
    return TODAY


def quick(cells: Collection[Cell]) -> list[Cell]:
    """One cell of each variant among these: where its failure shows as it was reported, if there is such a place."""

    asked = [failures()[name] for name in {cell.failure for cell in cells}]
    shows = {cell for failure in asked for cell in claims.showing(failure, outcomes(failure, shown_on(failure)))}
    places = {(cell.failure, cell.strategy, cell.checkpointing) for cell in shows}

    def fitting(cell: Cell) -> tuple[bool, ...]:
        failure = failures()[cell.failure]
        shown = cell in shows if cell.broken else (cell.failure, cell.strategy, cell.checkpointing) in places
        reported = failure.reported and failure.reported.strategy
        _, _, named = failure.report.partition("/")
        told = fnmatchcase(cell.name.partition("/")[2], named or "*")
        best = (shown, cell.strategy != "single", cell.strategy == reported, told, cell == _usual(cell))
        return tuple(not each for each in best)

    chosen: dict[tuple[str, str], Cell] = {}
    for cell in sorted(cells, key=fitting):
        chosen.setdefault((cell.failure, cell.variant), cell)
    return [cell for cell in cells if chosen[cell.failure, cell.variant] == cell]


@functools.cache
def over_time() -> timeline.Timeline:
    return timeline.read(timeline.COMMITTED)


def silent(failure: Failure, signatures: Collection[str]) -> set[Place]:
    """Where broken cells diverged in one of some ways, today or at any moment of the timeline."""
    today = [(cell, [" ".join(told)]) for cell, told in outcomes(failure).items()]
    dated = [
        (Cell.parse(name), told) for name, told in over_time().cells.items() if name.startswith(f"{failure.name}/")
    ]
    wanted = {f"diverges {signature}" for signature in signatures}
    return {(cell.strategy, cell.checkpointing) for cell, told in [*today, *dated] if cell.broken and wanted & {*told}}


@functools.cache
def recorded() -> tuple[dict[str, Any], ...]:
    """The entries of fixtures/errors/, made by `python -m faultline record`."""
    if not ERRORS.exists():
        return ()
    return tuple(json.loads(line) for line in ERRORS.read_text(encoding="utf-8").splitlines())


@functools.cache
def ran() -> timeline.Timeline:
    """What broken cells did on the stacks of stacks/, a moment each; made by `python -m faultline record`."""
    return timeline.read(RAN) if RAN.exists() else timeline.Timeline([], {})


@functools.cache
def pins(stack: str) -> dict[str, str]:
    """What a stack of stacks/ runs with; its torch is today's where it pins none."""
    told = bootstrap.pinned(stacks.named()[stack])
    return {name: told.get(name, pinned()[name]) for name in sorted(STACK)}


@functools.cache
def stack_of(line: str) -> str:
    """The stack of stacks/ that is a stack in one line; empty where none is."""
    return next((n for n in stacks.named() if ", ".join(f"{p} {v}" for p, v in pins(n).items()) == line), "")


def signature_of(cell: str, stack: str, error: str) -> tuple[str, str]:
    """The failure and the signature that a recorded error has in a cell; both empty where it isn't recorded."""
    for entry in recorded():
        if cell in entry["stacks"].get(stack, ()) and same_error(beginning(entry["error"]), beginning(error)):
            return entry["failure"], entry["signature"]
    return "", ""


def seen(error: str) -> list[tuple[str, str]]:
    """Cells of recorded runs that ended with an error, in whichever wording, each with its stack.

    The newest is the last, by its versions, transformers' first; today's is behind all.
    """
    found = [
        (cell, stack)
        for entry in recorded()
        if same_error(beginning(entry["error"]), beginning(error))
        for stack, cells in entry["stacks"].items()
        for cell in cells
    ]
    return sorted(found, key=lambda each: _age(each[1]))


def _age(stack: str) -> tuple[bool, list[Version]]:
    versions = dict(each.split() for each in stack.split(", "))
    order = ("transformers", *STACK)
    return versions == pinned(), [Version(versions.get(name, "0")) for name in order]


def beginning(error: str) -> str:
    """The beginning of an error, whose type has no module: what comes later differs from case to case."""
    kind, colon, said = one_line(error)[:WORDS].partition(": ")
    return kind.rpartition(".")[2] + colon + said


@functools.cache
def places(failure: Failure, signature: str) -> frozenset[Place]:
    """Every place in which a run, on whichever stack, ended with these words; none where no device here can show it."""
    found = {(cell.strategy, cell.checkpointing) for cell, told in outcomes(failure).items() if told[1] == signature}
    for name, told_over_time in over_time().cells.items():
        cell = Cell.parse(name)
        if cell.failure == failure.name and f"raises {signature}" in told_over_time:
            found.add((cell.strategy, cell.checkpointing))
    for entry in recorded():
        if (entry["failure"], entry["signature"]) == (failure.name, signature):
            shown = (Cell.parse(name) for names in entry["stacks"].values() for name in names)
            found |= {(cell.strategy, cell.checkpointing) for cell in shown}
    for rule in runner.rules(failure):
        if signature in rule.signatures and rule.device:  # a GPU's, which the default matrix leaves out
            cells = matrix.select({failure.name: failure}, Selection(failure=(failure.name,), device=rule.device[0]))
            found |= {(cell.strategy, cell.checkpointing) for cell in cells if expectations.about(rule, cell)}
    return frozenset(found)


def shown_by_itself(failure: Failure, signature: str) -> bool:
    """Whether the failure as reported ends with these words, and not just one of its remedies."""
    return any(told[1] == signature and cell.broken for cell, told in outcomes(failure).items())


def fates(
    failure: Failure, signature: str, where: Collection[Place], versions: Mapping[str, str] | None = None
) -> tuple[list[Fate], str]:
    """Remedies and how they did, with what they were measured against: ``there``, these words in these places.

    Where no cell could tell, ``there in other words``, whichever the failure has in these places; else
    ``elsewhere``: these words in any place; else ``other words`` of the failure, in any place. With somebody's
    releases, as the rules have it for them, if they have these words at all.
    """
    own, known = theirs(failure, versions or {})
    if own and not any(told[1] == signature for told in known.values()):
        known = outcomes(failure, shown_on(failure))
    for scope, chosen in (
        ("there", [c for c, told in known.items() if told[1] == signature and (c.strategy, c.checkpointing) in where]),
        ("there in other words", in_other_words(failure, signature, where, known)),
        ("elsewhere", [cell for cell, told in known.items() if told[1] == signature]),
        ("other words", list(known)),
    ):
        if found := remedies(failure, chosen, known):
            return found, scope
    return [], ""


def in_other_words(failure: Failure, signature: str, where: Collection[Place], told: Outcomes) -> list[Cell]:
    """The cells in these places that show the failure, each with another error or none."""
    own = {*failure.signatures} - {signature, *failure.elsewhere}
    return [
        cell
        for cell, (outcome, word) in told.items()
        if (cell.strategy, cell.checkpointing) in where
        and (word in own if outcome == "raises" else outcome in ("diverges", "misplaced", "hangs", "crashes"))
    ]


def remedies(failure: Failure, chosen: Collection[Cell], told: Outcomes | None = None) -> list[Fate]:
    """Each remedy that some of these cells put to the test, and how it did in them; upgrades are told as fixes.

    `told` is what cells do, unless it is as on the stack that shows the failure.
    """
    known = told or outcomes(failure, shown_on(failure))
    return [
        fate
        for key, claim in failure.claims.items()
        if claim.kind in (*REMEDIES, "detects")
        and "stack" not in claim.swap
        and (fate := _fate(failure, key, claim, known, set(chosen)))
    ]


def _fate(failure: Failure, key: str, claim: Claim, known: Outcomes, chosen: Collection[Cell]) -> Fate | None:
    whole = claims.verdict(failure, claim, known)
    pro, contra = ([c for c in cells if c in chosen] for cells in (whole.speaks_for, whole.against))
    if not pro and not contra:
        return None
    did: dict[str, list[Cell]] = {}
    for cell in contra:
        did.setdefault(report.named(*known[claims.swapped(failure, claim, cell)]), []).append(cell)
    instead = [
        told
        if len(cells) == len(pro) + len(contra)
        else f"{told} under {', '.join(report.places(cells, pro + contra))}"
        for told, cells in did.items()
    ]
    word = Verdict(claim, tuple(pro), tuple(contra)).word
    return Fate(key, claim, word, len(pro), len(pro) + len(contra), tuple(instead))


def cell_for(failure: Failure, signature: str, where: Collection[Place]) -> tuple[Cell | None, str]:
    """A cell that shows the words, there if any does, and the date of the stack that it takes: empty for today's."""
    today = [cell for cell, told in outcomes(failure).items() if told[1] == signature]
    dated = {
        Cell.parse(name): over_time().moments[told.index(f"raises {signature}")].date
        for name, told in over_time().cells.items()
        if name.startswith(f"{failure.name}/") and f"raises {signature}" in told
    }
    best = min(
        [(cell, "") for cell in today] + [(cell, "" if cell in today else date) for cell, date in dated.items()],
        key=lambda told: (
            (told[0].strategy, told[0].checkpointing) not in where,
            "broken" not in told[0].variant,
            bool(told[1]),
            told[0].strategy != (failure.reported.strategy if failure.reported else ""),
            told[0] != _usual(told[0]),
        ),
        default=(None, ""),
    )
    return best


def _usual(cell: Cell) -> Cell:
    return replace(cell, precision="fp32", world_size=matrix.default_world(cell))
