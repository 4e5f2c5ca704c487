"""Cells are measured: run on an engine, behind a progress bar, and each result is on disk as it comes."""

import contextlib
import functools
import json
import queue
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from faultline import strategies
from faultline.base.console import write_line
from faultline.base.errors import NoRoom, Terminated, terminate
from faultline.base.paths import ROOT
from faultline.base.text import count, one_line
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell, reference
from faultline.runs import cache, results, storage
from faultline.runs.cache import Cache
from faultline.runs.driver import Batch, Driver, Event
from faultline.runs.engines import LOCAL, Engine
from faultline.runs.results import Result, as_expected
from faultline.runs.storage import RunFolder

LOOK = 0.5  # seconds after which a wait for results begins again
UNEXPECTED = "not as expected"  # of a cell of the catalogue; what is checked has nothing but one process to go by
UNLIKE_ALONE = "unlike a single process"
RARELY = 10  # seconds between two lines, where nobody watches

DURATIONS = ROOT / "fixtures" / "durations.json"
UNKNOWN = 1.0  # seconds assumed for a cell that nothing is recorded of
START = 6.0  # seconds until a rank server has imported the libraries, on two idle cores
SLOWEST = 5  # times as long as START the start may take on a busy machine


def measure(batches: Sequence[Batch], workers: int, engine: Engine = LOCAL, wrong: str = UNEXPECTED) -> None:
    """Run batches behind a progress bar, several at a time if the engine isn't `here`; each result is written into its
    batch's folder as it comes.

    `wrong` says what the bar counts. What isn't `here` may get more workers on the way, up to those that were asked
    for.
    """
    cells = [cell for batch in batches for cell in batch.cells]
    known = [entry for batch in batches for entry in batch.known]
    folders = [batch.written_to for batch in batches]
    now, fewer = engine.workers(cells, workers) if cells else (workers, "")
    if fewer:
        print(fewer, file=sys.stderr)
    writers = [storage.Writer(folder) for folder in folders]
    for folder in folders:
        folder.describe(finished=False)
    for batch in batches:
        if batch.keep:
            batch.keep.begin(batch.cells)
    try:
        with progress(Console(stderr=True), cells, known, now, wrong) as advance:

            def done(batch: Batch, writer: storage.Writer, entry: Result) -> None:
                writer.add(entry)
                if batch.keep:
                    batch.keep.add(entry)
                advance(entry)
                batch.done(entry)

            written = [
                replace(batch, done=functools.partial(done, batch, writer))
                for batch, writer in zip(batches, writers, strict=True)
            ]
            run_batches(written, now if engine.here else workers, engine)
    except (OSError, KeyboardInterrupt, NoRoom) as error:
        ran = len(known) + sum(writer.written for writer in writers)
        shown = folders[0] if len(folders) == 1 else RunFolder(folders[0].path.parent)
        notes = [
            f"{ran} of {count(len(known) + len(cells), 'cell')} ran",
            f"the results so far are in {shown.shown}" if ran else "",
            "the same command with --resume goes on" if storage.goes_on(folders[0]) else "",
        ]
        error.add_note("; ".join(filter(None, notes)))
        raise
    finally:
        for writer in writers:
            writer.close()
        if any(batch.keep for batch in batches):
            cache.prune()


def run_batches(batches: Sequence[Batch], workers: int, engine: Engine = LOCAL) -> None:
    """Run the cells of batches on an engine, several at a time if it isn't `here`; each result is handed on alone.

    0 workers are as many as an engine has room for, also on nodes that come later. Returns when all are done. An
    exception in a slot or in `done`, and KeyboardInterrupt, end all slots before they go on; `done` still gets what was
    finished by then. Called in another thread than the main one, it can't be interrupted.
    """
    parts = [part for batch in batches if batch.cells for part in engine.batches(batch)]
    if not parts:
        return
    driver = Driver(parts)
    left = [len(part.cells) for part in parts]
    with _interrupts_given_to(driver.failed):
        try:
            with engine.slots(min(workers or driver.left, driver.left), driver):
                while any(left):
                    event = _next(driver.events)
                    if isinstance(event, BaseException):
                        raise event
                    number, item = event
                    if isinstance(item, Result):
                        left[number] -= 1
                        parts[number].done(item)
                    else:
                        left[number] = 0
                        parts[number].refused(item)
        finally:
            while not driver.events.empty():
                event = driver.events.get()
                if isinstance(event, tuple) and isinstance(event[1], Result):
                    parts[event[0]].done(event[1])


def _next(events: queue.SimpleQueue[Event]) -> Event:
    """The next item. A signal that comes as the wait begins doesn't end it, and is only seen between two waits."""
    while True:
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=LOOK)


@contextlib.contextmanager
def _interrupts_given_to(put: Callable[[BaseException], None]) -> Iterator[None]:
    """Have Ctrl-C, and SIGTERM, wait its turn in a queue: so it comes after what was finished before it, and can't stop
    the end."""
    usual: Mapping[int, Callable[..., object]] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    kinds: Mapping[int, type[KeyboardInterrupt]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
    # Where another handler is, somebody wants it ignored, or sees to it; another thread is never interrupted.
    in_main = threading.current_thread() is threading.main_thread()
    ours = [number for number, handler in usual.items() if in_main and signal.getsignal(number) is handler]
    for number in ours:
        signal.signal(number, lambda number, _: put(kinds[number]()))
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, usual[number])


def taken(cells: Sequence[Cell], folder: RunFolder, keep: Cache, only_expected: bool = False) -> list[Result]:
    """The cached results of cells, written into a folder as if they had been measured for it."""
    entries = [entry for entry in keep.take(cells) if not only_expected or results.as_expected(entry)]
    if entries:
        writer = storage.Writer(folder)
        writer.add(*entries)
        writer.close()
        print(cache.note(entries, cells), file=sys.stderr)
    return entries


def without(cells: Iterable[Cell], known: Iterable[Result]) -> list[Cell]:
    """The cells of which there is no result yet."""
    there = {entry.cell for entry in known}
    return [cell for cell in cells if cell not in there]


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


class Remaining:
    """How long the rest of a run takes: what is recorded of its cells, times how long those that ran took of it."""

    def __init__(self, cells: Collection[Cell], workers: int) -> None:
        seconds = likely(cells)
        self._likely = dict(zip(cells, seconds, strict=True))  # of several stacks, a cell takes as long on each
        self._whole = self._left = sum(seconds) or 1.0
        self._all = self.seconds = expected(cells, workers)

    def without(self, cell: Cell, elapsed: float) -> None:
        """One cell less, so many seconds after the start."""
        self._left -= self._likely.get(cell, 0.0)
        share = min(max(0.0, self._left / self._whole), 1 - 1e-9)
        pace = elapsed / (START + (self._all - START) * (1 - share))
        # No machine is slower than that: what takes longer are the cells, whatever is recorded of them.
        self.seconds = (elapsed - START * min(pace, SLOWEST)) * share / (1 - share)


def kind(cell: Cell) -> str:
    """What the duration of a cell mostly depends on."""
    failure = failures().get(cell.failure)
    trainer = next((v.trainer for v in failure.variants if v.name == cell.variant), "") if failure else ""
    return f"{cell.failure}/{trainer or 'scenario'}/{cell.strategy}/w{cell.world_size}"


def recorded(file: Path = DURATIONS) -> dict[str, float]:
    """The mean seconds of each kind of cell."""
    return json.loads(file.read_text()) if file.exists() else {}


def record(entries: Iterable[Result], file: Path = DURATIONS) -> None:
    """Write the mean seconds of each kind of cell, for later splits and estimates."""
    times: dict[str, list[float]] = {}
    for entry in entries:
        times.setdefault(kind(entry.cell), []).append(entry.seconds)
    means = {name: round(sum(values) / len(values), 2) for name, values in sorted(times.items())}
    file.write_text(json.dumps(means, indent=1) + "\n")


def likely(cells: Iterable[Cell]) -> list[float]:
    """The seconds of each cell: those of its kind, or else the median of its strategy's family."""
    seconds, medians = recorded(), _medians()
    return [seconds.get(kind(cell), medians.get(family(cell.strategy), UNKNOWN)) for cell in cells]


@functools.cache
def _medians() -> dict[str, float]:
    by_family: dict[str, list[float]] = {}
    for name, seconds in recorded().items():
        by_family.setdefault(family(name.split("/")[2]), []).append(seconds)
    return {name: statistics.median(values) for name, values in by_family.items()}


def family(strategy: str) -> str:
    """The name of a strategy's family; empty for one that there is no more."""
    return strategies.family_name(strategy) if strategy in strategies.names() else ""


def expected(cells: Collection[Cell], workers: int) -> float:
    """Seconds that a run of cells takes on so many workers, with the start of its servers and its references, each of
    which is made twice."""
    if not cells:
        return 0.0
    references = {reference(cell) for cell in cells}
    seconds = likely([*cells, *references, *references])
    return START + max(sum(seconds) / min(workers, len(cells)), *seconds)


def estimate(cells: Collection[Cell], workers: int, runs: int = 1) -> str:
    """How many cells run and how long that takes, in words: ``432 cells in 2 runs, about 5 min with 2 workers``."""
    number = f"{count(len(cells), 'cell')} in {runs} runs" if runs > 1 else count(len(cells), "cell")
    return f"{number}, {about(runs * expected(cells, workers))} with {count(workers, 'worker')}"


def about(seconds: float) -> str:
    """A time as people say it: ``about 3 min``."""
    minutes = round(seconds / 60)
    if seconds < 60:
        return "less than a minute"
    return f"about {minutes // 60} h {minutes % 60} min" if minutes > 90 else f"about {minutes} min"
