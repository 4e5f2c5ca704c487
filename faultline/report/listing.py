"""What the terminal says of the whole catalogue and of this machine: the failures of a selection, an environment."""

import textwrap
from collections import Counter
from collections.abc import Collection, Mapping

from rich.console import Console
from rich.text import Text

from faultline.base.console import write_line
from faultline.base.text import count, here, one_line
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell


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
