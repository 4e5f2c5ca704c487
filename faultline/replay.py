"""Past bumps whose answer is known, asked again: what says whether is-safe can be trusted."""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from faultline import campaigns, candidates, matrix, readmes, stacks
from faultline.catalogue import failures
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError, unknown
from faultline.matrix import Cell, Selection
from faultline.report import named, verdict
from faultline.safety import Answer, Safety
from faultline.stacks import STACKS

FILE, README = STACKS / "bumps.toml", STACKS / "README.md"
AXES = ("failure", "variant", "strategy", "checkpointing", "precision")


@dataclass(frozen=True)
class Bump:
    """One change of requirements, and what is known of it: the verdict, and why in a sentence with its record.

    `cells` narrows is-safe's cells, axis by axis, with patterns.
    """

    name: str
    base: str
    requirements: str
    verdict: Safety
    why: str
    record: str = ""
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)


def command(args: argparse.Namespace) -> int:
    """Ask is-safe about each bump, and write the table when all were asked; exit code 1 for an answer not as known."""
    bumps = read()
    for name in args.names:
        if name not in bumps:
            raise unknown("bump", name, list(bumps))
    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {args.workers}")
    names = args.names or list(bumps)
    request = {"bumps": names}
    campaign = campaigns.begin("replay", request, args.workers, args.resume)
    answers: dict[str, Answer] = {}
    for name in names:
        bump = bumps[name]
        campaigns.say(f"{name}: {bump.requirements} on {bump.base}")
        answers[name] = candidates.ask(campaign, bump.requirements, stacks.parse(bump.base), chosen(bump))
        folder = campaign.folder.path / name
        folder.mkdir(exist_ok=True)
        verdict.write(folder, answers[name])
        verdict.terminal(Console(), answers[name])
        right = answers[name].comparison.verdict == bump.verdict
        print(f"known: {bump.verdict}{'' if right else ', so this answer is WRONG'}: {bump.why}\n")
    if not args.names:
        print(readmes.put(README, lambda: table(bumps, answers)))
    wrong = [name for name in names if answers[name].comparison.verdict != bumps[name].verdict]
    told = f", not as known: {', '.join(wrong)}" if wrong else ""
    print(f"{len(names) - len(wrong)} of {len(names)} bumps answered as known{told}; results: {campaign.folder.shown}")
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def read() -> dict[str, Bump]:
    """The bumps of stacks/bumps.toml by name."""
    told: dict[str, Any] = tomllib.loads(FILE.read_text(encoding="utf-8"))
    usual = {"cells": told.get("cells", {})}
    bumps = [Bump(**{**usual, **entry, "verdict": Safety(entry["verdict"])}) for entry in told["bump"]]
    return {bump.name: bump for bump in bumps}


def chosen(bump: Bump) -> list[Cell]:
    """The cells that is-safe runs for a bump."""
    if set(bump.cells) - set(AXES):
        raise UsageError(f"{bump.name}: cells are narrowed by {', '.join(AXES)}")
    failure, variant, strategy, checkpointing, precision = (tuple(bump.cells.get(axis, ())) for axis in AXES)
    cells = matrix.select(failures(), Selection(failure, variant, strategy, checkpointing, precision))
    return cells if "variant" in bump.cells else candidates.default(cells)


def table(bumps: Mapping[str, Bump], answers: Mapping[str, Answer]) -> str:
    """What was asked, known and answered, as Markdown."""
    rows = ["| bump | baseline | known | answer | cells | what changed |", "| --- | --- | --- | --- | --- | --- |"]
    for name, answer in answers.items():
        bump, comparison = bumps[name], answer.comparison
        right = comparison.verdict == bump.verdict
        counts: Counter[str] = Counter()
        for group in comparison.groups:
            counts[f"{group.kind}: {named(group.before)} to {group.after}"] += len(group.changes)
        changed = ", ".join(f"{count} {verdict.code(text)}" for text, count in counts.items())
        link = f"[{bump.why}]({bump.record})" if bump.record else bump.why
        rows.append(
            f"| {verdict.code(bump.requirements)}: {link} | {verdict.code(bump.base)} | {bump.verdict} |"
            f" {comparison.verdict if right else f'**{comparison.verdict}**'} | {comparison.compared} |"
            f" {changed or (comparison.unusable and verdict.code(comparison.unusable[:200])) or 'nothing'} |"
        )
    return "\n".join(rows)
