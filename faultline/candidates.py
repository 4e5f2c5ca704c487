"""Is a candidate stack safe: the same cells on it and on a baseline, and again what changed."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence

from rich.console import Console

from faultline import campaigns, commands, results, safety, stacks
from faultline.campaigns import Campaign, Measured
from faultline.catalogue import failures
from faultline.environments import pins
from faultline.errors import UsageError
from faultline.matrix import Cell
from faultline.report import verdict
from faultline.results import RunFolder
from faultline.safety import Answer, Comparison
from faultline.server import STACK
from faultline.stacks import Stack


def command(args: argparse.Namespace) -> int:
    """Whether requirements are safe on a baseline: exit code 0, 1 for not, 3 where that can't be known."""
    cells = commands.wanted(args)
    if not (args.all or args.variant or args.cell):
        cells = default(cells)
    if not cells:
        raise UsageError("no cell is all of that")
    base = stacks.parse(args.base)
    on(base, "", args.requirements)  # a mistake in the question is told before anything runs
    request = {
        "requirements": args.requirements,
        "base": base.name,
        "cells": [cell.id for cell in cells],
    }
    campaign = campaigns.begin("is-safe", request, args.workers, args.resume)
    answer = ask(campaign, args.requirements, base, cells)
    verdict.write(campaign.folder.path, answer)
    verdict.terminal(Console(), answer)
    print(f"results: {campaign.folder.shown}/summary.md, verdict.json, report.html")
    return answer.comparison.verdict.exit_code


def default(cells: Sequence[Cell]) -> list[Cell]:
    """Of the cells of a matrix those in a trainer, and of the others the broken variants, which have no remedy."""
    known = {(name, v.name): v for name, failure in failures().items() for v in failure.variants}
    variants = ((cell, known[cell.failure, cell.variant]) for cell in cells)
    return [cell for cell, variant in variants if variant.trainer or variant.remedy == "broken"]


def ask(campaign: Campaign, candidate: str, base: Stack, cells: Sequence[Cell]) -> Answer:
    """Run cells on both stacks, and again those that changed; what can't be installed is known before any runs."""
    names = (base.name, f"{' '.join(candidate.split())} on {base.name}")
    old = campaigns.measure(campaign, names[0], base, [])
    new = campaigns.measure(campaign, names[1], on(base, old.lock, candidate), []) if old.lock else Measured(names[1])
    changed = safety.packages(pins(old.lock), pins(new.lock), removed=not base.here) if new.lock else []
    unusable = next((f"{each.name}: {each.unusable}" for each in (old, new) if each.unusable), "")
    if not unusable and changed:
        comparison = compare(campaign, (old, new), cells)
    else:
        comparison = Comparison(unusable=unusable, identical=not unusable)
    stack = results.stack_name({name: version for name, version in pins(old.lock).items() if name in STACK})
    text = " ".join(candidate.split())
    return Answer(text, base.name, changed, comparison, repeatable(base, text, new), stack)


def on(base: Stack, lock: str, candidate: str) -> Stack:
    """A candidate's stack: its requirements, with all else as a baseline resolved it; or a whole stack by name or date.

    A baseline with a date dates what the candidate brings anew.
    """
    words = candidate.split()
    if base.here or (len(words) == 1 and (words[0] in stacks.named() or re.fullmatch(r"\d{4}-\d\d-\d\d", words[0]))):
        return stacks.parse(candidate)
    return stacks.changed(candidate, lock.splitlines(), base.asof)


def compare(campaign: Campaign, both: tuple[Measured, Measured], cells: Sequence[Cell]) -> Comparison:
    """Measure cells on both stacks, then as often as it takes those whose change is in doubt."""
    runs: tuple[list[Measured], list[Measured]] = ([], [])
    repeated: Counter[str] = Counter()
    wanted = list(cells)
    while True:
        for stack, own in zip(both, runs, strict=True):
            name = f"{shared(campaign, stack)}{f' again {len(own)}' if own else ''}"
            campaigns.part(campaign, name).describe(lock=stack.lock)
            own.append(campaigns.measure(campaign, name, Stack(stack.name), wanted))
            if own[-1].unusable:
                return Comparison(unusable=f"{stack.name}: {own[-1].unusable}")
        repeated.update(cell.id for cell in wanted if len(runs[0]) > 1)
        comparison = safety.compare(cells, *([part.results for part in own] for own in runs))
        wanted = safety.pending(comparison, repeated)
        if not wanted:
            return comparison
        campaigns.say(f"{len(wanted)} of {len(comparison.changes)} changed cells run again on both stacks")


def shared(campaign: Campaign, stack: Measured) -> str:
    """The name under which a campaign has results of a stack's packages; they may have been another question's."""
    parts = [RunFolder(file.parent).facts() for file in campaign.folder.path.glob("*/run.json")]
    return min((str(f["name"]) for f in parts if f.get("lock") == stack.lock and "stack" in f), default=stack.name)


def repeatable(base: Stack, candidate: str, measured: Measured) -> str:
    """What STACK must be to repeat a cell: the requirements, or the versions under test on another baseline."""
    text = candidate
    if not base.here:
        found = {name: version for name, version in pins(measured.lock).items() if name in STACK}
        text = " ".join(f"{name}=={version}" for name, version in results.untagged(found).items())
    return text
