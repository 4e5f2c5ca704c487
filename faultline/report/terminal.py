"""Reports on the terminal: tables of a run, what was not as expected, the failures of a selection, an environment."""

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Column
from rich.table import Table as Columns
from rich.text import Text

from faultline.base.axes import CHECKPOINTING
from faultline.base.console import write_line
from faultline.base.text import count, cut, here, one_line
from faultline.catalogue.loading import failures
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.cells.words import group_strategies
from faultline.observations.wording import normalised
from faultline.report import run
from faultline.report.run import ABSENT, SYMBOLS, Table, TableRow
from faultline.runs.progress import UNEXPECTED
from faultline.runs.results import Result, as_expected, expectation

STYLES = {
    "trains": "green",
    "raises": "red",
    "diverges": "magenta",
    "misplaced": "yellow",
    "hangs": "cyan",
    "crashes": "bright_red",
    "impossible": "dim",
    "invalid": "bold red",
}
LISTED = 40  # cells that `unexpected` shows
CELL = len(CHECKPOINTING)  # a symbol for each mode; the blank behind it has room for the mark
MARK = "!"


def tables(console: Console, results: Collection[Result], wrong: str = UNEXPECTED) -> None:
    """A table for each failure with a symbol for each checkpointing mode, a legend, and totals.

    `wrong` says what the marked cells are.
    """
    width = console.width if console.is_terminal else max(console.width, 100)  # a file has no width
    for table in run.tables(results):
        title = Text(one_line(table.failure), style="bold")
        known = failures().get(table.failure)
        write_line(console, title.append(f"  {known.title}", style="not bold dim") if known else title)
        for line in _table(table, width):
            write_line(console, line)
        write_line(console)
    legend(console, f"{ABSENT} not run")
    write_line(
        console, f"In each column: checkpointing {', '.join(CHECKPOINTING)}. {MARK} marks what is {wrong}.", "dim"
    )
    write_line(console, totals(results, wrong))


def legend(console: Console, absent: str) -> None:
    """The symbols of the outcomes, and what stands where there is none."""
    items = [Text(symbol, STYLES[outcome]).append(f" {outcome}", "default") for outcome, symbol in SYMBOLS.items()]
    line = Text()
    for item in (*items, Text(absent, "dim")):
        if line and console.is_terminal and line.cell_len + item.cell_len + 2 > console.width:
            write_line(console, line)
            line = Text()
        line.append("  " if line else "").append(item)
    write_line(console, line)


def columns(first: str, *others: str | Column) -> Columns:
    """A table whose first column has names, and the others numbers unless they are columns of another kind."""
    numbers = (Column(each, justify="right", no_wrap=True) if isinstance(each, str) else each for each in others)
    return Columns(Column(first, overflow="fold"), *numbers, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")


def totals(results: Collection[Result], wrong: str = UNEXPECTED) -> str:
    """How many cells there are, of each outcome, and not as expected, or whatever is `wrong` with them."""
    counts = Counter(result.outcome for result in results)
    parts = [
        f"{outcome} {counts[outcome]}" for outcome in (*SYMBOLS, *sorted({*counts} - {*SYMBOLS})) if counts[outcome]
    ]
    marked = sum(not as_expected(result) for result in results)
    return f"{count(len(results), 'cell')}: {', '.join(parts) or 'none'}; {marked} {wrong}"


def _table(table: Table, width: int) -> Iterator[Text]:
    """The lines of a table: whole names above, if there is room, else in as many blocks as the width asks for."""
    longest = max(len(one_line(row.label)) for row in table.rows)
    whole = {name: max(CELL + 1, len(one_line(name)) + 1) for name in table.strategies}
    if longest + 1 + sum(whole.values()) <= width:
        heads = "".join(one_line(name).ljust(whole[name]) for name in table.strategies)
        yield Text((" " * (longest + 1) + heads).rstrip(), style="bold")
        yield from _rows(table, table.strategies, whole, longest)
        return
    widths = _widths(table.strategies)
    label = min(longest, max(16, width - sum(widths.values()) - 1))
    for block in _blocks(table.strategies, widths, width - label - 1):
        yield from _block(table, block, widths, label)


def _blocks(strategies: Sequence[str], widths: Mapping[str, int], room: int) -> list[list[str]]:
    """The strategies that stand beside each other in so many columns; a family is torn only if it alone has no room."""
    blocks: list[list[str]] = [[]]
    free = room
    for _, family in groupby(strategies, key=_head):
        members = list(family)
        whole = sum(widths[name] for name in members)
        for name in members:
            if blocks[-1] and free < (whole if name == members[0] and whole <= room else widths[name]):
                blocks.append([])
                free = room
            blocks[-1].append(name)
            free -= widths[name]
    return blocks


def _widths(strategies: Sequence[str]) -> dict[str, int]:
    """The width of each column: the last one of a family has what the family's name needs."""
    widths = dict.fromkeys(strategies, CELL + 1)
    for head, family in groupby(strategies, key=_head):
        members = list(family)
        widths[members[-1]] += max(0, len(head) + 1 - (CELL + 1) * len(members))
    return widths


def _head(strategy: str) -> str:
    return one_line(strategy).split("-")[0]


def _block(table: Table, strategies: Sequence[str], widths: Mapping[str, int], label: int) -> Iterator[Text]:
    indent = " " * (label + 1)
    heads = ""
    for head, members in groupby(strategies, key=_head):
        room = sum(widths[name] for name in members)
        heads += head[: room - 1].ljust(room)
    yield Text((indent + heads).rstrip(), style="bold")
    for part in (1, 2):  # find-unused stands below ddp as "fin" and "unu"
        tails = "".join(
            (one_line(name).split("-")[part : part + 1] or [""])[0][:CELL].ljust(widths[name]) for name in strategies
        )
        if tails.strip():
            yield Text((indent + tails).rstrip(), style="dim")
    yield from _rows(table, strategies, widths, label)


def _rows(table: Table, strategies: Sequence[str], widths: Mapping[str, int], label: int) -> Iterator[Text]:
    extra = False
    for row in table.rows:
        if row.extra and not extra:
            yield Text("")
        extra = row.extra
        first, *others = textwrap.wrap(one_line(row.label), label)
        line = Text(first.ljust(label + 1))
        for name in strategies:
            line.append(_symbols(row, name)).append(" " * (widths[name] - CELL - 1))
        line.rstrip()
        yield line
        yield from (Text(f"  {rest}") for rest in others)


def _symbols(row: TableRow, strategy: str) -> Text:
    """A symbol for each mode, and the mark: colours alone don't survive a pipe."""
    text, marked = Text(), False
    for mode in CHECKPOINTING:
        result = row.cells.get((strategy, mode))
        if result is None:
            text.append(ABSENT, "dim")
            continue
        style = STYLES.get(result.outcome, "bold red")
        if not as_expected(result):
            style, marked = f"{style} bold reverse", True
        text.append(SYMBOLS.get(result.outcome, "?"), style)
    return text.append(MARK if marked else " ", "bold red")


def ended(console: Console, results: Collection[Result], missing: int = 0) -> None:
    """How to go on where some cells are `missing`, or that every one did what was expected."""
    if missing:
        ran = f"{len(results)} of {count(len(results) + missing, 'cell')} ran"
        write_line(console, f"{ran}: `{here('faultline run --resume')}` with the same options goes on", "bold yellow")
    elif all(map(as_expected, results)):
        write_line(console, "Every cell did what was expected of it.", "green")


def unexpected(console: Console, results: Collection[Result], stack: str = "", missing: int = 0) -> None:
    """What was not as expected, each with the command that repeats exactly that cell on its stack; and how to go on
    where some cells are `missing`."""
    wrong = sorted((result for result in results if not as_expected(result)), key=lambda result: result.cell.id)
    ended(console, results, missing)
    if not wrong:
        return
    write_line(console)
    write_line(console, f"{len(wrong)} {UNEXPECTED}:", "bold")
    width = max(console.width if console.is_terminal else 160, 40) - 2
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in wrong:
        key = (result.cell.failure, result.cell.variant, result.verdict, expectation(result), normalised(result.detail))
        groups.setdefault(key, []).append(result)
    for alike in [*groups.values()][:LISTED]:
        result = alike[0]
        head = Text(f"{one_line(result.cell.id)}  ").append(one_line(result.verdict), "bold red")
        if others := len(alike) - 1:
            under = group_strategies({each.cell.strategy for each in alike}, ())
            head.append(f"  and {count(others, 'cell')} more: {one_line(under)}")
        write_line(console, head)
        write_line(console, f"  {cut(': '.join(filter(None, (expectation(result), result.detail))), width)}")
        if again := words.command(result.cell.id, stack):
            write_line(console, f"  {here(again)}", "dim")
    if len(groups) > LISTED:
        write_line(console, f"and {len(groups) - LISTED} more: report.html lists them all")


def overview(console: Console, cells: Collection[Cell], others: int) -> None:
    """Each failure of a selection with its number of cells and its title, and how many cells are left out.

    The title stands below the name where both don't fit on one line.
    """
    numbers = Counter(cell.failure for cell in cells)
    titles = {name: one_line(failures()[name].title) for name in numbers}
    names, longest = (max(map(len, texts), default=0) for texts in (numbers, titles.values()))
    beside = console.width >= names + longest + 9
    if numbers:
        write_line(console, f"{'failure':<{names}}  cells{'  title' if beside else ''}", "dim")
    for name, number in numbers.items():
        line = Text(f"{name:<{names}}", "bold").append(f"  {number:>5}", "not bold dim")
        write_line(console, line.append(f"  {titles[name]}", "not bold not dim") if beside else line)
        for part in () if beside else textwrap.wrap(titles[name], max(console.width - 2, 20), break_on_hyphens=False):
            write_line(console, f"  {part}")
    write_line(console)
    write_line(console, f"{count(len(cells), 'cell')} of {count(len(numbers), 'failure')}.")
    if others:
        write_line(
            console, f"{others:,} others can't exist or are left out by default: --left-out has the rules.", "dim"
        )
    write_line(console, f"Details of one: {here('faultline show FAILURE')}", "dim")


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
