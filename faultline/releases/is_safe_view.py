"""The answer of is-safe: on the terminal, as a comment in Markdown, and as JSON."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.base.axes import CHECKPOINTING, OPTIONAL, PRECISION
from faultline.base.console import write_line
from faultline.base.packages import STACK, TODAY
from faultline.base.text import count, one_line, plain
from faultline.cells import words
from faultline.cells.cell import default_world
from faultline.cells.words import group_strategies, in_order
from faultline.releases.changes import ChangeGroup, Comparison, Safety
from faultline.releases.coverage import Reach

PACKAGES, GROUPS = 80, 12  # that the comment has: GitHub takes 65536 characters
ERROR = 700  # characters of an error that the comment and the terminal show
STYLES = dict(zip(Safety, ("bold green", "bold red", "bold yellow", "bold"), strict=True))


@dataclass(frozen=True)
class UpgradeAnswer:
    """What is known of a candidate: the packages that differ from the baseline's, and what their cells did.

    `packages` has name, old and new version; `repeat` is the stack, as
    `faultline run` takes it, on which a cell does what it did on the candidate.
    `stack` has the baseline's versions in a line, `notes` what is taken where a file pins no version. `reach` is what
    of the release the cells execute, and `scope` says so in lines, with what was left out.
    """

    candidate: str
    baseline: str
    packages: Sequence[tuple[str, str, str]]
    comparison: Comparison
    repeat: str = ""
    stack: str = ""
    reach: Reach = field(default_factory=Reach)
    scope: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def against(self) -> str:
        return baseline_name(self.baseline)


def baseline_name(stack: str) -> str:
    """A baseline as people know it."""
    return "your installed stack" if stack == TODAY else stack


def write(folder: Path, answer: UpgradeAnswer) -> None:
    """Write summary.md and verdict.json."""
    (folder / "summary.md").write_text(markdown(answer), encoding="utf-8")
    (folder / "verdict.json").write_text(json.dumps(data(answer), indent=2) + "\n", encoding="utf-8")


def headline(answer: UpgradeAnswer) -> str:
    """The verdict, and on what: ``SAFE: trl 1.16.0 → 1.12.0 (against your installed stack)``."""
    return one_line(f"{answer.comparison.verdict}: {upgrade(answer)} (against {answer.against})")


def upgrade(answer: UpgradeAnswer) -> str:
    """The versions that were asked for and differ, or all of the stack that do; else the candidate as it was given."""
    asked = {re.split(r"[^\w.-]", word)[0].lower() for word in answer.candidate.split()}
    steps = dict(zip((name for name, _, _ in answer.packages), bumped(answer), strict=True))
    some = [step for name, step in steps.items() if name in asked] or [steps[name] for name in STACK if name in steps]
    return ", ".join(some) or answer.candidate


def because(answer: UpgradeAnswer) -> list[str]:
    """Why the verdict is what it is, and what the comparison covered, each in a line."""
    return [*reasons(answer), *map(one_line, answer.scope)]


def reasons(answer: UpgradeAnswer) -> list[str]:
    """Why the verdict is what it is, and how many cells were compared, each in a line."""
    comparison = answer.comparison
    if comparison.identical:
        return ["no library under test changes, so no cell ran: this is neither SAFE nor NOT SAFE"]
    lines = [one_line(reason) for _, reason in comparison.reasons]
    if not comparison.unusable:
        total = f"{comparison.compared} of {comparison.cells} cells ran on both stacks"
        lines.append(f"{total}, {len(comparison.changes)} changed")
        if comparison.trained:
            lines.append(f"{count(comparison.trained, 'other')} train on the candidate, so they can't have got worse")
        if comparison.recorded:
            lines.append(
                f"{count(comparison.recorded, 'other')} fail as they are recorded to on the baseline's versions"
            )
        if left_out := not_compared(comparison):
            lines.append(f"no cell ran under {left_out}")
    return lines


def not_compared(comparison: Comparison) -> str:
    """The strategies under which no cell was judged, in few words."""
    return group_strategies([name for name in strategies.names() if name not in comparison.strategies], ())


def bumped(answer: UpgradeAnswer) -> list[str]:
    """The packages that differ: ``trl 1.16.0 → 1.12.0``."""
    return [one_line(f"{name} {old or 'none'} → {new or 'none'}") for name, old, new in answer.packages]


def places(group: ChangeGroup) -> list[tuple[str, str]]:
    """Where a group's cells are, axis by axis, in few words."""
    cells = [change.cell for change in group.changes]
    names = in_order((cell.strategy for cell in cells), strategies.names())
    modes = in_order((cell.checkpointing for cell in cells), CHECKPOINTING)
    variants = {
        failure: {cell.variant for cell in cells if cell.failure == failure}
        for failure in sorted({cell.failure for cell in cells})
    }
    others = {
        axis: in_order((getattr(cell, axis.name) for cell in cells), axis.values) for axis in (PRECISION, *OPTIONAL)
    }
    worlds = sorted({cell.world_size for cell in cells if cell.world_size != default_world(cell)})
    axes = [
        ("failures", ", ".join(f"{name} ({', '.join(sorted(each))})" for name, each in variants.items())),
        ("strategies", group_strategies(names, strategies.names())),
        ("checkpointing", "any" if len(modes) == len(CHECKPOINTING) else ", ".join(modes)),
        *((axis.name, ", ".join(each)) for axis, each in others.items() if each != [axis.default]),
        ("world sizes", ", ".join(map(str, worlds)) and f"also {', '.join(map(str, worlds))}"),
    ]
    return [(axis, one_line(text)) for axis, text in axes if text]


def repeat(answer: UpgradeAnswer, group: ChangeGroup) -> str:
    """What runs the group's plainest cell again; nothing for a stack that a shell or make would read otherwise."""
    return words.command(group.example.cell.id, answer.repeat) if answer.repeat else ""


def data(answer: UpgradeAnswer) -> dict[str, object]:
    """The whole answer as JSON can hold it; docs/releases.md has the table of its keys."""
    comparison = answer.comparison
    return {
        "verdict": str(comparison.verdict),
        "exit_code": comparison.verdict.exit_code,
        "candidate": plain(answer.candidate),
        "baseline": plain(answer.baseline),
        "stack": plain(answer.stack),
        "reasons": because(answer),
        "notes": [one_line(note) for note in answer.notes],
        "unusable": plain(comparison.unusable),
        "identical": comparison.identical,
        "packages": [
            {"name": plain(name), "before": plain(old), "after": plain(new)} for name, old, new in answer.packages
        ],
        "cells": comparison.cells,
        "compared": comparison.compared,
        "trained": comparison.trained,
        "recorded": comparison.recorded,
        "strategies": [name for name in strategies.names() if name in comparison.strategies],
        "changed": len(comparison.changes),
        "reach": reach(answer.reach),
        "groups": [
            {
                "kind": str(group.kind),
                "before": plain(group.did),
                "after": plain(group.does),
                "error": plain(group.example.error),
                "where": dict(places(group)),
                "repeat": repeat(answer, group),
                "cells": [change.cell.id for change in group.changes],
            }
            for group in comparison.groups
        ],
    }


def reach(covers: Reach) -> dict[str, object]:
    """What the cells execute of each package that differs: the numbers of what changed, and what they don't reach."""
    return {
        package: {
            "functions": [*covered.functions],
            "bodies": [*covered.bodies],
            "missed": [plain(f"{unit.file}:{unit.name}") for unit in covered.missed],
        }
        for package, covered in covers.by_package().items()
    }


def code(text: str) -> str:
    """A text in a code span, where Markdown, HTML and @mentions mean nothing, also within a table."""
    text = one_line(text).replace("|", "\u00a6")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text or ' '}{fence}"


def block(text: str) -> list[str]:
    """A text in a fenced block, which nothing in it can end."""
    text = one_line(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return [f"{fence}text", text, fence]


def markdown(answer: UpgradeAnswer) -> str:
    """A comment for a pull request: the verdict, what changed in packages, and each cause with its error."""
    verdict, groups = answer.comparison.verdict, answer.comparison.groups
    # What made a stack unusable is said in the words of others; all other reasons are ours.
    why = [code(line) if answer.comparison.unusable else line for line in reasons(answer)]
    lines = [f"## {verdict}: {code(upgrade(answer)[:500])}", ""]
    lines += [f"Compared with {code(': '.join(filter(None, (answer.against, answer.stack))))}.", ""]
    lines += [f"- {line}" for line in (*why, *map(code, (*answer.scope, *answer.notes[:GROUPS])))]
    if answer.packages:
        more = f" and {len(answer.packages) - PACKAGES} more" if len(answer.packages) > PACKAGES else ""
        lines += ["", f"Packages: {', '.join(code(text[:100]) for text in bumped(answer)[:PACKAGES])}{more}."]
    for number, group in enumerate(groups[:GROUPS], 1):
        cells = count(len(group.changes), "cell")
        lines += ["", f"**{number}. {group.kind}**: {cells}, {code(group.did)} → {code(group.does)}", ""]
        lines += [f"- {axis}: {code(text[:300])}" for axis, text in places(group)]
        for text in filter(None, (group.example.error[:ERROR], repeat(answer, group))):
            lines += ["", *block(text)]
    if len(groups) > GROUPS:
        lines += ["", f"And {len(groups) - GROUPS} more, which verdict.json has."]
    return "\n".join(lines) + "\n"


def terminal(console: Console, answer: UpgradeAnswer) -> None:
    """The answer in lines that can be pasted."""
    write_line(console, headline(answer), STYLES[answer.comparison.verdict])
    for line in because(answer):
        write_line(console, f"  {line}")
    if answer.stack:
        write_line(console, f"baseline: {answer.stack}")
    if answer.packages:
        write_line(console, f"packages: {', '.join(bumped(answer))}")
    if answer.comparison.groups:
        write_line(console, "changed cells, by cause:", "bold")
    for number, group in enumerate(answer.comparison.groups, 1):
        cells = count(len(group.changes), "cell")
        write_line(
            console,
            Text(f"{number}. {group.kind}", "bold").append(f"  {cells}: {group.did} → {group.does}", "not bold"),
        )
        for axis, text in places(group):
            write_line(console, f"  {axis}: {text}")
        for text in filter(None, (group.example.error[:ERROR], repeat(answer, group))):
            write_line(console, f"  {text}", "dim")
