"""What the terminal says of the catalogue: how many cells there are, a failure's record, an environment."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from rich.console import Console
from rich.table import Column
from rich.table import Table as Columns
from rich.text import Text

from faultline.base.console import write_line
from faultline.base.text import one_line
from faultline.catalogue import TRIED_HERE, Failure
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.claims import Verdict
from faultline.report.terminal import columns

WORDS = {"verified": "green", "refuted": "red", "conditional": "yellow", "untested": "dim"}


def overview(console: Console, cells: Collection[Cell], left_out: Mapping[str, int]) -> None:
    """How many cells each failure has at both levels, and what the default matrix leaves out and why."""
    counts = columns("failure", "scenario", "trainer", "cells")
    levels = Counter((cell.failure, bool(failures()[cell.failure].variant(cell.variant).trainer)) for cell in cells)
    for name in dict.fromkeys(cell.failure for cell in cells):
        scenario, trainer = levels[name, False], levels[name, True]
        counts.add_row(name, str(scenario), str(trainer), str(scenario + trainer))
    scenario, trainer = (sum(n for (_, level), n in levels.items() if level is wanted) for wanted in (False, True))
    counts.add_section()
    counts.add_row("all", str(scenario), str(trainer), str(len(cells)))
    console.print(counts)
    rules = columns("left out of the default matrix, in all failures", "cells")
    for reason, count in left_out.items():
        rules.add_row(Text(one_line(reason)), str(count))
    console.print(rules)


def failure(console: Console, failure: Failure, verdicts: Mapping[str, Verdict], source: str) -> None:
    """What the catalogue says of a failure, and how the claims about it fared in the run that `source` names."""
    write_line(console, failure.title, "bold")
    write_line(console, f"  {failure.name}", "dim")
    console.print()
    facts = Columns.grid(Column(style="dim", no_wrap=True), Column(overflow="fold"), padding=(0, 2))
    for name, lines in {
        "records": failure.records,
        "since": [failure.since],
        "until": [failure.until],
        "signatures": [f"{name}: {pattern}" for name, pattern in failure.errors.items()],
        "variants": [_variant(variant.name, variant.strategies) for variant in failure.variants],
    }.items():
        facts.add_row(name, Text("\n".join(lines)))
    console.print(facts)
    claims = columns("", Column("claim", overflow="fold"), Column("verdict", no_wrap=True), "for", "against")
    for key, claim in failure.claims.items():
        row: list[Text | str] = []
        if verdict := verdicts.get(key):
            row = [Text(verdict.word, WORDS[verdict.word]), str(len(verdict.supporting)), str(len(verdict.against))]
        claims.add_row(key, Text(claim.text), *row)
    console.print(claims)
    for url in dict.fromkeys(claim.source for claim in failure.claims.values()):
        keys = ", ".join(key for key, claim in failure.claims.items() if claim.source == url)
        write_line(console, f"{keys}: {url or TRIED_HERE}", "dim")
    write_line(console, source)


def _variant(name: str, patterns: Iterable[str]) -> str:
    return name if tuple(patterns) == ("*",) else f"{name} (only {', '.join(patterns)})"


def environment(console: Console, facts: Mapping[str, object], indent: int = 0) -> None:
    """Nested facts as indented lines that can be pasted into an issue."""
    for key, value in facts.items():
        start = f"{' ' * indent}{one_line(key)}:"
        if isinstance(value, Mapping) and value:
            write_line(console, start)
            environment(console, value, indent + 2)
            continue
        text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        write_line(console, f"{start} {one_line(text) or 'none'}")
