"""How far a run is."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from faultline.base.console import write_line
from faultline.base.text import one_line
from faultline.runs.results import Result, as_expected

UNEXPECTED = "not as expected"  # of a cell of the catalogue; what is checked has nothing but one process to go by
UNLIKE_ALONE = "unlike a single process"


@contextmanager
def progress(
    console: Console, total: int, known: Collection[Result], wrong: str = UNEXPECTED
) -> Iterator[Callable[[Result], None]]:
    """Show how far a run is, and give the function to call with each result.

    `known` are results that a resumed run has already; `wrong` says what those are that are counted. Where nobody
    watches, a line for each tenth takes the place of the bar.
    """
    done, unexpected = len(known), sum(not as_expected(result) for result in known)
    start = time.monotonic()
    bar = Progress(
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        disable=not console.is_terminal or console.is_dumb_terminal,
    )
    task = bar.add_task(f"{unexpected} {wrong}", total=total, completed=done)
    if bar.disable:
        before = f", {done} of them known from before" if done else ""
        write_line(console, f"{total} {'cell' if total == 1 else 'cells'}{before}")

    def advance(result: Result) -> None:
        nonlocal done, unexpected
        done, unexpected = done + 1, unexpected + (not as_expected(result))
        bar.update(task, advance=1, description=f"{unexpected} {wrong}, {one_line(result.cell.failure)[:32]}")
        if bar.disable and done * 10 // total > (done - 1) * 10 // total:
            seconds = int(time.monotonic() - start)
            elapsed = f"{seconds // 60}:{seconds % 60:02}"
            write_line(console, f"{done}/{total} cells after {elapsed}, {unexpected} {wrong}, {result.cell.failure}")

    with bar:
        yield advance
