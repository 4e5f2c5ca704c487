"""Is a candidate stack safe: the same cells on it and on a baseline, and again what changed."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from faultline.base.errors import UsageError
from faultline.base.packages import STACK, TODAY, stack_name, untagged
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.releases import changes, is_safe_view, sides
from faultline.releases.changes import Comparison
from faultline.releases.is_safe_view import Answer
from faultline.runs import campaigns, devices
from faultline.runs.campaigns import Campaign, Measured
from faultline.runs.storage import RunFolder
from faultline.stacks import requests
from faultline.stacks.environments import pins
from faultline.stacks.requests import Stack


@dataclass(frozen=True)
class Request:
    """What to judge and on which baseline, as people have it; `python` names the baseline by an interpreter instead.

    `fresh` takes no kept results. `whole` asks for all selected cells, with the remedies of mechanisms.
    """

    candidate: str
    selection: Selection
    base: str = TODAY
    whole: bool = False
    workers: int = 1
    resume: bool = False
    python: str = ""
    fresh: bool = False


def run(request: Request) -> int:
    """Whether a candidate is safe on a baseline: exit code 0 if it is or changes nothing, 1 if not, 3 if that can't be
    known."""
    cells = devices.runnable(request.selection)
    if not (request.whole or request.selection.variant or request.selection.cells):
        cells = default(cells)
    if not cells:
        raise UsageError("no cell matches all of these options")
    base, notes = sides.baseline(request.base, request.python)
    candidate = sides.read(request.candidate, sides.expected(base), "as in the baseline")
    if candidate.text or not candidate.notes:
        on(base, "", candidate.text)  # a mistake in the question is reported before anything runs
    asked = {"candidate": candidate.text, "base": [base.name, *base.requirements], "cells": [cell.id for cell in cells]}
    campaign = campaigns.begin("is-safe", asked, request.workers, request.resume, request.fresh)
    for note in (*notes, *candidate.notes):
        campaigns.note(note)
    answer = replace(ask(campaign, candidate.text, base, cells), notes=(*notes, *candidate.notes))
    is_safe_view.write(campaign.folder.path, answer)
    is_safe_view.terminal(Console(), answer)
    print(f"results: {campaign.folder.shown}/summary.md, verdict.json, report.html")
    return answer.comparison.verdict.exit_code


def default(cells: Sequence[Cell]) -> list[Cell]:
    """Of the cells of a matrix those in a trainer, and of the others the broken variants, which have no remedy."""
    known = {(name, v.name): v for name, failure in failures().items() for v in failure.variants}
    variants = ((cell, known[cell.failure, cell.variant]) for cell in cells)
    return [cell for cell, variant in variants if variant.trainer or variant.remedy == "broken"]


def ask(campaign: Campaign, candidate: str, base: Stack, cells: Sequence[Cell]) -> Answer:
    """Run cells on both stacks, and again those that changed.

    That both are the same is known before an environment is made, and what can't be installed before any cell runs.
    """
    text = " ".join(candidate.split())
    if sides.same(base, text):
        return Answer(text, base.name, (), Comparison(identical=True), stack=_line(sides.expected(base)))
    names = (base.name, f"{text} on {base.name}")
    old = campaigns.resolved(campaign, names[0], base)
    changed_to = on(base, old.lock, text) if old.lock else None
    new = campaigns.resolved(campaign, names[1], changed_to) if changed_to else Measured(names[1])
    changed = packages(pins(old.lock), pins(new.lock), removed=not base.here) if new.lock else []
    if changed and changed_to:
        campaigns.announce(campaign, cells, 2, f"{names[0]}, and {names[1]}; what changes runs again")
        old = campaigns.measure(campaign, names[0], base, [])
        new = campaigns.measure(campaign, names[1], changed_to, [])
    known_as = is_safe_view.named(base.name)
    unusable = f"{known_as}: {old.unusable}" if old.unusable else ""
    if new.unusable and not unusable:
        unusable = f"{text} on {known_as}: {new.unusable}"
    if not unusable and changed:
        comparison = compare(campaign, (old, new), cells)
    else:
        comparison = Comparison(unusable=unusable, identical=not unusable)
    return Answer(
        text, base.name, changed, comparison, repeatable(base, text, new), _line(pins(old.lock) or sides.expected(base))
    )


def _line(versions: Mapping[str, str]) -> str:
    return stack_name({name: version for name, version in versions.items() if name in STACK})


def packages(before: Mapping[str, str], after: Mapping[str, str], removed: bool = True) -> list[tuple[str, str, str]]:
    """Name, old and new version of each package that differs; an empty version is that of one that isn't there."""
    names = sorted({*after, *(before if removed else ())})
    return [(name, before.get(name, ""), after.get(name, "")) for name in names if before.get(name) != after.get(name)]


def on(base: Stack, lock: str, candidate: str) -> Stack:
    """A candidate's stack: its requirements, with all else as a baseline resolved it; or a whole stack by name or date.

    A baseline with a date dates what the candidate adds.
    """
    words = candidate.split()
    if base.here or (len(words) == 1 and (words[0] in requests.named() or re.fullmatch(r"\d{4}-\d\d-\d\d", words[0]))):
        return requests.parse(candidate)
    return requests.changed(candidate, lock.splitlines(), base.asof)


def compare(campaign: Campaign, both: tuple[Measured, Measured], cells: Sequence[Cell]) -> Comparison:
    """Measure cells on both stacks, then as often as it takes those whose change is in doubt."""
    runs: tuple[list[Measured], list[Measured]] = ([], [])
    repeated: Counter[str] = Counter()
    wanted = list(cells)
    while True:
        for stack, measured in zip(both, runs, strict=True):
            name = f"{shared(campaign, stack)}{f' again {len(measured)}' if measured else ''}"
            campaigns.part(campaign, name).describe(lock=stack.lock)
            measured.append(campaigns.measure(campaign, name, Stack(stack.name), wanted, again=len(measured)))
            if measured[-1].unusable:
                return Comparison(unusable=f"{stack.name}: {measured[-1].unusable}")
        repeated.update(cell.id for cell in wanted if len(runs[0]) > 1)
        comparison = changes.compare(cells, *([part.results for part in side] for side in runs))
        wanted = changes.pending(comparison, repeated)
        if not wanted:
            return comparison
        campaigns.note(f"{len(wanted)} of {len(comparison.changes)} changed cells run again on both stacks")


def shared(campaign: Campaign, stack: Measured) -> str:
    """The name under which a campaign has results of a stack's packages; they may have been another question's."""
    parts = [RunFolder(file.parent).info() for file in campaign.folder.path.glob("*/run.json")]
    return min((part.name for part in parts if part.lock == stack.lock and part.stack), default=stack.name)


def repeatable(base: Stack, candidate: str, measured: Measured) -> str:
    """What STACK must be to repeat a cell: the requirements, or the versions under test on another baseline."""
    if base.here:
        return candidate
    versions = {name: version for name, version in pins(measured.lock).items() if name in STACK}
    return " ".join(f"{name}=={version}" for name, version in untagged(versions).items())
