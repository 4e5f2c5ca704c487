"""is-safe for bumps: past ones whose answer is known, which say if it can be trusted, and a change of our own pins."""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from faultline.base import machine
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError, unknown
from faultline.base.markdown import headed, put, row
from faultline.base.packages import NEEDED, pinned
from faultline.base.paths import RESULTS, ROOT, STACKS
from faultline.base.text import count
from faultline.catalogue.history import axes
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import outcome_text
from faultline.cells import selection
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.releases import is_safe, is_safe_view
from faultline.releases.changes import Comparison, Safety
from faultline.releases.is_safe_view import UpgradeAnswer
from faultline.releases.recorded import Bump, past_upgrades
from faultline.releases.sampling import USUAL, How
from faultline.runs import campaigns
from faultline.stacks import requests

README = STACKS / "README.md"
COVERING = How("affected", most=0)  # as where so many cells are affected that not all of them run


def replay(asked: Sequence[str], workers: int, resume: bool, fresh: bool = False) -> int:
    """Ask is-safe about each bump, and write the table when all were asked; exit code 1 for an answer not as known."""
    bumps = past_upgrades()
    for name in asked:
        if name not in bumps:
            raise unknown("bump", name, list(bumps))
    names = list(asked or bumps)
    campaign = campaigns.begin("replay", {"bumps": names}, workers, resume, fresh)
    answers: dict[str, UpgradeAnswer] = {}
    affected: dict[str, Comparison] = {}
    wrong = []
    for name in names:
        bump = bumps[name]
        campaigns.note(f"{name}: {bump.requirements} on {bump.base}")
        cells = cells_of(bump)
        answers[name] = is_safe.ask(campaign, bump.requirements, requests.parse(bump.base), cells, How("every"))
        affected[name] = is_safe.narrowed(answers[name], cells, COVERING)
        usual = is_safe.narrowed(answers[name], cells, USUAL)
        folder = campaign.folder.path / name
        folder.mkdir(exist_ok=True)
        is_safe_view.write(folder, answers[name])
        is_safe_view.terminal(Console(), answers[name])
        asked_how = {"all cells": answers[name].comparison, "by default": usual, "--affected": affected[name]}
        for how, comparison in asked_how.items():
            print(f"{how}: {comparison.verdict}, {count(comparison.judged, 'cell')} judged")
        right = {comparison.verdict for comparison in asked_how.values()} == {bump.verdict}
        wrong += [] if right else [name]
        print(f"known: {bump.verdict}{'' if right else ', so this answer is WRONG'}: {bump.why}\n")
    if not asked:
        print(put(README, lambda: table(bumps, answers, affected)))
    others = f", not as known: {', '.join(wrong)}" if wrong else ""
    print(
        f"{len(names) - len(wrong)} of {len(names)} bumps answered as known{others}; results: {campaign.folder.shown}"
    )
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def cells_of(bump: Bump) -> list[Cell]:
    """The cells that is-safe runs for a bump."""
    cells: list[Cell] = []
    for text in bump.cells:
        failure, _, place = text.partition("/")
        asked = {axis: pattern for axis, pattern in axes(place).items() if pattern != "*"}
        cells += selection.select(failures(), Selection.parse(failure=failure, **asked))
    return cells


def table(bumps: Mapping[str, Bump], answers: Mapping[str, UpgradeAnswer], affected: Mapping[str, Comparison]) -> str:
    """What was asked, known and answered, also by the affected cells alone, as Markdown."""
    rows = []
    for name, answer in answers.items():
        bump, comparison = bumps[name], answer.comparison
        counts: Counter[str] = Counter()
        for group in comparison.groups:
            counts[f"{group.kind}: {outcome_text(group.did)} to {group.does}"] += len(group.changes)
        changed = ", ".join(f"{count} {is_safe_view.code(text)}" for text, count in counts.items())
        link = f"[{bump.why}]({bump.record})" if bump.record else bump.why
        cells = (
            f"{is_safe_view.code(bump.requirements)}: {link}",
            is_safe_view.code(bump.base),
            bump.verdict,
            marked(comparison.verdict, bump),
            str(comparison.judged),
            f"{marked(affected[name].verdict, bump)}, {affected[name].judged}",
            coverage(answer),
            changed or (comparison.unusable and is_safe_view.code(comparison.unusable[:200])) or "nothing",
        )
        rows.append(row(*cells))
    asked = ("bump", "baseline", "known", "answer", "cells", "with `--affected`")
    return "\n".join(headed((*asked, "changed functions reached", "what changed"), rows))


def marked(verdict: Safety, bump: Bump) -> str:
    """A verdict, and bold where it isn't the one that is known."""
    return verdict if verdict == bump.verdict else f"**{verdict}**"


def coverage(answer: UpgradeAnswer) -> str:
    """How many of the functions that changed the cells execute."""
    functions = {unit for unit in answer.reach.changed if not unit.body}
    return f"{len(functions & answer.reach.reached)} of {len(functions)}" if functions else ""


def change(old: Path, new: Path = ROOT / "requirements.txt") -> int:
    """Ask `is-safe` about the pins that differ between an older requirements.txt and today's."""
    base, candidate = differing(old, new)
    if candidate:
        print(f"{base} -> {candidate}", flush=True)
        return is_safe.run(is_safe.IsSafeRequest(candidate, Selection(), base, workers=machine.cores()))
    line = "Nothing to compare: no pin of the stack changes"
    print(line)
    # No run that could go on, but what automation looks for: an earlier summary of this change is out of date.
    folder = RESULTS / time.strftime("is-safe-%Y-%m-%dT%H-%M-%S")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.md").write_text(f"## {line}\n", encoding="utf-8")
    answer = is_safe_view.data(UpgradeAnswer("", "", (), Comparison(identical=True)))
    (folder / "verdict.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return EXIT_AS_EXPECTED


def differing(old: Path, new: Path) -> tuple[str, str]:
    """What two requirements files pin differently of the stack, as the requirements of the one and of the other.

    Both are empty where only other packages differ; raises UsageError where the two can't be compared.
    """
    try:
        before, after = pinned(old), pinned(new)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{old} can't be read: {error}") from None
    names = [name for name in NEEDED if before.get(name) != after.get(name)]
    for name in names:
        if name not in before or name not in after:
            without = old if name not in before else new
            raise UsageError(f"{without} doesn't pin {name} to a version, so there is nothing to compare")
    was, now = (" ".join(f"{name}=={pins[name]}" for name in names) for pins in (before, after))
    return was, now
