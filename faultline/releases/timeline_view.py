"""A timeline on the terminal."""

from collections import Counter
from itertools import groupby

from rich.console import Console
from rich.text import Text

from faultline.base.console import write_line
from faultline.base.text import one_line
from faultline.observations.timeline import UNINSTALLABLE, Timeline, series, when
from faultline.report.run import ABSENT, SYMBOLS
from faultline.report.terminal import STYLES, columns, legend

COLUMN = 8  # characters of a moment on the terminal


def terminal(console: Console, timeline: Timeline) -> None:
    """A table for each failure; moments that don't fit the terminal's width are in further tables."""
    everything = series(timeline)
    label = max((len(row.variant) for row in everything), default=0)
    fit = max((console.width - label - 2) // COLUMN, 1)
    for failure, grouped in groupby(everything, key=lambda row: row.failure):
        write_line(console, Text(one_line(failure), "bold"))
        rows = list(grouped)
        for start in range(0, len(timeline.stacks), fit):
            part = slice(start, start + fit)
            table = columns("", *map(when, timeline.stacks[part]))
            for row in rows:
                marks = map(mark, row.points[part])
                table.add_row(Text(one_line(row.variant)), *(Text(text, STYLES.get(did, "dim")) for did, text in marks))
            console.print(table)
    legend(console, f"{ABSENT} {UNINSTALLABLE.outcome}")
    write_line(console, "A number: so many cells, of all strategies and modes, don't train.", "dim")


def mark(point: Counter[str]) -> tuple[str, str]:
    """The outcome that most cells have which don't train, and in few characters, how many they are."""
    if point[UNINSTALLABLE.outcome]:
        return UNINSTALLABLE.outcome, ABSENT
    bad = {outcome: n for outcome, n in point.items() if outcome not in ("trains", "impossible")}
    if bad:
        outcome = min(bad, key=lambda name: (-bad[name], name))
        return outcome, f"{SYMBOLS.get(outcome, '?')}{sum(bad.values())}"
    outcome = "trains" if point["trains"] else "impossible"
    return outcome, SYMBOLS[outcome]
