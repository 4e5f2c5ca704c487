"""A timeline on the terminal, as a picture, and as one HTML page that needs nothing else."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from faultline.base.text import one_line, plain
from faultline.catalogue.loading import failures
from faultline.observations.store import Stack
from faultline.observations.timeline import UNINSTALLABLE, Series, Timeline, series, when
from faultline.report.page import template
from faultline.report.run import ABSENT, SYMBOLS
from faultline.report.terminal import STYLES

FOLDER = Path(__file__).parent
# Pixels: the labels' width, a square's side with its gap, the dates' height, an outcome's width in the legend.
LABEL, SIDE, HEAD, NAME = 250, 20, 46, 85
COLUMN = 6  # characters of a moment on the terminal


@dataclass(frozen=True)
class Piece:
    """A part of a square: how many of its cells had an outcome, `top` and `height` in pixels."""

    outcome: str
    top: float
    height: float


@dataclass(frozen=True)
class Square:
    """One variant at one moment, and what is said of it on hover."""

    left: int
    pieces: Sequence[Piece]
    title: str


@dataclass(frozen=True)
class Line:
    """A line of the picture: a failure's heading, or a variant with its squares."""

    top: int
    label: str
    squares: Sequence[Square] = ()


def terminal(console: Console, timeline: Timeline) -> None:
    """A table for each failure: the outcome that most cells have which don't train, and how many they are.

    Moments that don't fit the terminal's width are shown below; a file has no width.
    """
    everything = series(timeline)
    label = max((len(row.variant) for row in everything), default=0) + 1
    fit = max((console.width - label - 2) // COLUMN, 1) if console.is_terminal else len(timeline.stacks)
    for failure, grouped in groupby(everything, key=lambda row: row.failure):
        console.print(Text(one_line(failure), style="bold"), soft_wrap=True)
        rows = list(grouped)
        for start in range(0, len(timeline.stacks), fit):
            part = slice(start, start + fit)
            head = [Text(when(moment).rjust(COLUMN - 1) + " ") for moment in timeline.stacks[part]]
            console.print(Text(" " * label).append_text(Text().join(head)), style="dim", soft_wrap=True)
            for row in rows:
                line = Text(one_line(row.variant).ljust(label))
                for mark in map(_mark, row.points[part]):
                    line.append(" " * (COLUMN - 1 - len(mark))).append_text(mark).append(" ")
                console.print(line, soft_wrap=True)
        console.print()
    legend = Text()
    for outcome, symbol in SYMBOLS.items():
        legend.append(symbol, STYLES[outcome]).append(f" {outcome}  ")
    console.print(legend.append(f"{ABSENT} {UNINSTALLABLE}", "dim"), soft_wrap=True)
    console.print(Text("A number: so many cells, of all strategies and modes, don't train.", "dim"), soft_wrap=True)


def _mark(point: Counter[str]) -> Text:
    """What a square says in two characters."""
    bad = Counter({outcome: n for outcome, n in point.items() if outcome not in ("trains", "impossible")})
    if bad[UNINSTALLABLE.outcome]:
        return Text(ABSENT, "dim")
    if bad:
        outcome = min(bad, key=lambda name: (-bad[name], name))
        return Text(f"{SYMBOLS.get(outcome, '?')}{bad.total()}", STYLES.get(outcome, ""))
    outcome = "trains" if point["trains"] else "impossible"
    return Text(SYMBOLS[outcome], STYLES[outcome])


def picture(timeline: Timeline) -> str:
    """The timeline as SVG: a square for each variant and moment, filled by the outcomes of its cells."""
    lines = list(_lines(timeline))
    met = {outcome for row in series(timeline) for point in row.points for outcome in +point}
    outcomes = [outcome for outcome in (*SYMBOLS, UNINSTALLABLE.outcome) if outcome in met]
    return template(FOLDER / "timeline.svg.j2").render(
        lines=lines,
        dates=[(LABEL + number * SIDE, one_line(when(moment))) for number, moment in enumerate(timeline.stacks)],
        outcomes=[(number * NAME, outcome) for number, outcome in enumerate(outcomes)],
        width=max(LABEL + len(timeline.stacks) * SIDE, len(outcomes) * NAME) + 10,
        height=lines[-1].top + 2 * SIDE + 10 if lines else HEAD,
        side=SIDE - 2,
    )


def _lines(timeline: Timeline) -> list[Line]:
    lines: list[Line] = []
    top = HEAD
    for failure, rows in groupby(series(timeline), key=lambda row: row.failure):
        lines.append(Line(top, one_line(failure)))
        top += SIDE
        for row in rows:
            lines.append(
                Line(top, one_line(row.variant), [_square(timeline, row, i) for i in range(len(timeline.stacks))])
            )
            top += SIDE
        top += SIDE // 2
    return lines


def _square(timeline: Timeline, row: Series, number: int) -> Square:
    point, total, top = row.points[number], row.points[number].total(), 0.0
    pieces = []
    for outcome in (*SYMBOLS, UNINSTALLABLE.outcome):
        if point[outcome]:
            height = (SIDE - 2) * point[outcome] / total
            pieces.append(Piece(outcome, round(top, 2), round(height, 2)))
            top += height
    counts = ", ".join(f"{one_line(outcome)} {n}" for outcome, n in point.most_common())
    return Square(
        LABEL + number * SIDE, pieces, f"{one_line(row.variant)}: {counts}\n{versions(timeline.stacks[number])}"
    )


def versions(stack: Stack) -> str:
    """A month's date and versions, or why there are none."""
    releases = ", ".join(f"{name} {version}" for name, version in stack.versions.items())
    return plain(f"{stack.month}: {stack.unusable or releases}")


def page(file: Path, timeline: Timeline) -> None:
    """Write the HTML page: the picture, then every cell's outcomes over time."""
    cells: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {}
    for cell, outcomes in timeline.cells.items():
        did = [(plain(each.outcome), str(each)) for each in outcomes]
        cells.setdefault(plain(cell.failure), []).append((plain(cell.name), did))
    html = template(FOLDER / "timeline.html.j2").render(
        picture=picture(timeline),
        dates=[(one_line(when(moment)), versions(moment)) for moment in timeline.stacks],
        cells=cells,
        titles={name: failure.title for name, failure in failures().items()},
        symbols={**SYMBOLS, UNINSTALLABLE.outcome: ABSENT},
    )
    file.write_text(html, encoding="utf-8")
