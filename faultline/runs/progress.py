"""The bar of a run: how far its cells are, how long the rest takes, and how many surprise."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from faultline.base.console import write_line
from faultline.base.text import count, one_line
from faultline.cells.cell import Cell
from faultline.runs.estimates import Remaining, about, estimate
from faultline.runs.results import Result, as_expected

UNEXPECTED = "not as expected"  # of a cell of the catalogue; what is checked has nothing but one process to go by
UNLIKE_ALONE = "unlike a single process"
RARELY = 10  # seconds between two lines, where nobody watches


@contextlib.contextmanager
def progress(
    console: Console, cells: Collection[Cell], known: Collection[Result], workers: int = 1, wrong: str = UNEXPECTED
) -> Iterator[Callable[[Result], None]]:
    """Say how many cells run and about how long that takes, then how far they are; gives the function to call with
    each result.

    `known` are results that a resumed run has already; `wrong` says what those are that are counted. Where nobody
    watches, a line for each tenth takes the place of the bar, but none soon after another.
    """
    total, done = len(cells) + len(known), len(known)
    unexpected = sum(not as_expected(result) for result in known)
    several = wrong == UNEXPECTED and len({cell.failure for cell in cells}) > 1  # a program has no name to read
    start = last = time.monotonic()
    still = Remaining(cells, workers)
    before = f"{count(total, 'cell')}, {done} of them known from before; " if known else ""
    if cells:
        write_line(console, before + estimate(cells, workers))
    bar = Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        disable=not console.is_terminal or console.is_dumb_terminal,
    )
    task = bar.add_task(f"{about(still.seconds)} left, {unexpected} {wrong}", total=total, completed=done)

    def advance(result: Result) -> None:
        nonlocal done, unexpected, last
        done, unexpected, now = done + 1, unexpected + (not as_expected(result)), time.monotonic()
        still.without(result.cell, now - start)
        left = f"{about(still.seconds)} left, " if done < total else ""
        state = f"{left}{unexpected} {wrong}" + (f", {one_line(result.cell.failure)[:32]}" if several else "")
        bar.update(task, advance=1, description=state)
        tenth = done * 10 // total > (done - 1) * 10 // total
        if bar.disable and (done == total or (tenth and now - last > RARELY)):
            last, seconds = now, int(now - start)
            write_line(console, f"{done}/{total} cells after {seconds // 60}:{seconds % 60:02}, {state}")

    with bar:
        yield advance
