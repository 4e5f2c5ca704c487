"""The answer of is-safe: on the terminal, as a comment in Markdown, as JSON, and as one HTML page."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from faultline import strategies
from faultline.base.text import count, one_line, plain
from faultline.cells import words
from faultline.cells.cell import CHECKPOINTING, PRECISIONS, Cell, default_world
from faultline.cells.words import grouped, ordered
from faultline.releases.changes import ChangeGroup, Comparison, Kind, Safety
from faultline.report.page import template

LONGEST = 60_000  # characters of the comment; GitHub takes 65536
PACKAGES = 80  # that the comment names
ERROR = 700  # characters of an error that the comment and the terminal show
STYLES = {Safety.SAFE: "bold green", Safety.NOT_SAFE: "bold red", Safety.UNKNOWN: "bold yellow"}
COLOURS = {
    Kind.DIVERGES: "magenta",
    Kind.REGRESSED: "red",
    Kind.IMPOSSIBLE: "yellow",
    Kind.INFRA: "yellow",
    Kind.FIXED: "green",
    Kind.POSSIBLE: "green",
}


@dataclass(frozen=True)
class Answer:
    """What is known of a candidate: the packages that differ from the baseline's, and what their cells did.

    `packages` has name, old and new version; `repeat` is the stack, as
    `make test-matrix` takes it, on which a cell does what it did on the candidate.
    `stack` has the baseline's versions in a line.
    """

    candidate: str
    baseline: str
    packages: Sequence[tuple[str, str, str]]
    comparison: Comparison
    repeat: str = ""
    stack: str = ""


def write(folder: Path, answer: Answer) -> None:
    """Write summary.md, verdict.json and report.html."""
    (folder / "summary.md").write_text(markdown(answer), encoding="utf-8")
    (folder / "verdict.json").write_text(json.dumps(data(answer), indent=2) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(answer), encoding="utf-8")


def headline(answer: Answer) -> str:
    return one_line(f"{answer.comparison.verdict}: {answer.candidate} on {answer.baseline}")


def because(answer: Answer) -> list[str]:
    """Why the verdict is what it is, and what the comparison covered, each in a line."""
    comparison = answer.comparison
    if comparison.identical:
        return ["the candidate changes no package: there is nothing to compare"]
    lines = [one_line(reason) for _, reason in comparison.reasons]
    if not comparison.unusable:
        total = f"{comparison.compared} of {comparison.cells} cells ran on both stacks"
        lines.append(f"{total}, {len(comparison.changes)} changed")
    return lines


def bumped(answer: Answer) -> list[str]:
    """The packages that differ: ``trl 1.16.0 -> 1.12.0``."""
    return [one_line(f"{name} {old or 'none'} -> {new or 'none'}") for name, old, new in answer.packages]


def places(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    """Where cells are, axis by axis, in few words."""
    cells = list(cells)
    names = ordered((cell.strategy for cell in cells), strategies.names())
    modes = ordered((cell.checkpointing for cell in cells), CHECKPOINTING)
    variants: dict[str, list[str]] = {}
    for cell in cells:
        variants.setdefault(cell.failure, [])
        if cell.variant not in variants[cell.failure]:
            variants[cell.failure].append(cell.variant)
    precisions = ordered((cell.precision for cell in cells), PRECISIONS)
    worlds = sorted({cell.world_size for cell in cells if cell.world_size != default_world(cell)})
    axes = [
        ("failures", ", ".join(f"{name} ({', '.join(sorted(each))})" for name, each in sorted(variants.items()))),
        ("strategies", grouped(names, strategies.names())),
        ("checkpointing", "any" if len(modes) == len(CHECKPOINTING) else ", ".join(modes)),
        ("precision", "" if precisions == ["fp32"] else ", ".join(precisions)),
        ("world sizes", ", ".join(map(str, worlds)) and f"also {', '.join(map(str, worlds))}"),
    ]
    return [(axis, one_line(text)) for axis, text in axes if text]


def repeat(answer: Answer, group: ChangeGroup) -> str:
    """What runs the group's plainest cell again; nothing for a stack that a shell or make would read otherwise."""
    return words.command(group.example.cell.id, answer.repeat) if answer.repeat else ""


def data(answer: Answer) -> dict[str, object]:
    """The whole answer as JSON can hold it; docs/releases.md has the table of its keys."""
    comparison = answer.comparison
    return {
        "verdict": str(comparison.verdict),
        "exit_code": comparison.verdict.exit_code,
        "candidate": plain(answer.candidate),
        "baseline": plain(answer.baseline),
        "stack": plain(answer.stack),
        "reasons": because(answer),
        "unusable": plain(comparison.unusable),
        "identical": comparison.identical,
        "packages": [
            {"name": plain(name), "before": plain(old), "after": plain(new)} for name, old, new in answer.packages
        ],
        "cells": comparison.cells,
        "compared": comparison.compared,
        "changed": len(comparison.changes),
        "groups": [
            {
                "kind": str(group.kind),
                "before": plain(group.before),
                "after": plain(group.after),
                "error": plain(group.example.error),
                "where": dict(places(change.cell for change in group.changes)),
                "repeat": repeat(answer, group),
                "cells": [change.cell.id for change in group.changes],
            }
            for group in comparison.groups
        ],
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


def markdown(answer: Answer) -> str:
    """A comment for a pull request: the verdict, what changed in packages, a table of causes, each cause's error."""
    verdict, groups = answer.comparison.verdict, answer.comparison.groups
    # What made a stack unusable is said in the words of others; all other reasons are ours.
    reasons = map(code, because(answer)) if answer.comparison.unusable else because(answer)
    lines = [f"## {verdict}: {code(answer.candidate[:500])}", ""]
    lines += [
        f"Compared with {code(': '.join(filter(None, (answer.baseline, answer.stack))))}.",
        "",
        *(f"- {line}" for line in reasons),
    ]
    if answer.packages:
        more = f" and {len(answer.packages) - PACKAGES} more" if len(answer.packages) > PACKAGES else ""
        lines += ["", f"Packages: {', '.join(code(text[:100]) for text in bumped(answer)[:PACKAGES])}{more}."]
    if groups:
        lines += ["", "| change | cells | before | now | strategies |", "| --- | --- | --- | --- | --- |"]
    size, shown = sum(map(len, lines)), 0
    table, details = [], []
    for number, group in enumerate(groups, 1):
        where = dict(places(change.cell for change in group.changes))
        row = f"| {number}. {group.kind} | {len(group.changes)} | {code(group.before)} | {code(group.after)} |"
        row += f" {code(where['strategies'])} |"
        detail = ["", f"**{number}. {group.kind}**: {count(len(group.changes), 'cell')}", ""]
        detail += [f"- {axis}: {code(text[:600])}" for axis, text in where.items()]
        detail += ["", *block(group.example.error[:ERROR])] if group.example.error else []
        detail += ["", *block(repeat(answer, group))] if repeat(answer, group) else []
        size += len(row) + sum(len(line) + 1 for line in detail) + 1
        if size > LONGEST - 1000:
            break
        table.append(row)
        details += detail
        shown += 1
    left = [f"And {len(groups) - shown} more, which report.html has."] if shown < len(groups) else []
    return "\n".join([*lines, *table, *details, "", *left]).rstrip() + "\n"


def page(answer: Answer) -> str:
    """The answer as an HTML page that needs nothing else."""
    return template(Path(__file__).with_name("verdict.html.j2")).render(
        headline=headline(answer), bumped=bumped(answer), because=because(answer), **data(answer)
    )


def terminal(console: Console, answer: Answer) -> None:
    """The answer in lines that can be pasted."""
    for line in _lines(answer):
        console.print(line, soft_wrap=True)
        if line.plain.startswith("changed cells"):
            console.print(_table(answer.comparison.groups))


def _lines(answer: Answer) -> Iterator[Text]:
    comparison = answer.comparison
    yield Text(headline(answer), STYLES[comparison.verdict])
    yield from (Text(f"  {line}") for line in because(answer))
    if answer.stack:
        yield Text(one_line(f"baseline: {answer.stack}"))
    if answer.packages:
        yield Text(f"packages: {', '.join(bumped(answer))}")
    if comparison.groups:
        yield Text("changed cells, by cause:", "bold")
    for number, group in enumerate(comparison.groups, 1):
        yield Text(f"{number}. {group.kind}", COLOURS.get(group.kind, "")).append(
            f"  {count(len(group.changes), 'cell')}: {group.before} -> {group.after}", "not bold"
        )
        yield from (Text(f"  {axis}: {text}") for axis, text in places(change.cell for change in group.changes))
        if group.example.error:
            yield Text(f"  {group.example.error[:ERROR]}", "dim")
        if again := repeat(answer, group):
            yield Text(f"  {again}", "dim")


def _table(groups: list[ChangeGroup]) -> Table:
    table = Table("", "change", "cells", "before", "now", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, group in enumerate(groups, 1):
        row = (str(number), group.kind, str(len(group.changes)), group.before, group.after)
        table.add_row(*(Text(one_line(text)) for text in row))
    return table
