"""Cells are measured: run on an engine, behind a progress bar, and each result is on disk as it comes."""

import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.console import Console

from faultline.base.errors import NoRoom, Terminated, terminate
from faultline.base.text import count
from faultline.cells.cell import Cell
from faultline.runs import cache, results, storage
from faultline.runs.driver import Batch, Driver, Event
from faultline.runs.engines import LOCAL, Engine
from faultline.runs.progress import UNEXPECTED, progress
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder

LOOK = 0.5  # seconds after which a wait for results begins again


def prepare(batch: Batch, engine: Engine = LOCAL, fresh: bool = False, again: int = 0, expected: bool = False) -> Batch:
    """Leave out the cells that a batch has results of, and, unless it is `fresh`, those that the cache has.

    What the cache has is written into the folder, as if it had been measured for it; if `expected`, what it has of
    cells that did what is expected of them. `again` is as `Cache` has it.
    """
    missing = without(batch.cells, batch.known)
    if not missing:
        return replace(batch, cells=missing)
    keep = cache.of(batch.stack, missing[0].device, again, engine.here)
    taken = [] if fresh else [each for each in keep.take(missing) if not expected or results.as_expected(each)]
    if taken:
        with contextlib.closing(storage.Writer(batch.written_to)) as writer:
            writer.add(*taken)
        note = f"{len(taken):,} of {len(missing):,} cells were measured before; --fresh runs them again"
        print(note, file=sys.stderr)
    left = without(missing, taken)
    keep.begin(left)
    return replace(batch, cells=left, known=[*batch.known, *taken], keep=keep)


def without(cells: Iterable[Cell], known: Iterable[Result]) -> list[Cell]:
    """The cells of which there is no result yet."""
    there = {entry.cell for entry in known}
    return [cell for cell in cells if cell not in there]


def measure(
    batches: Sequence[Batch],
    workers: int,
    engine: Engine = LOCAL,
    wrong: str = UNEXPECTED,
    on_result: Callable[[Result], None] = lambda entry: None,
) -> None:
    """Run batches behind a progress bar, several at a time if the engine isn't `here`; each result is written into its
    batch's folder as it comes, and then given to `on_result`.

    `wrong` says what the bar counts. What isn't `here` may get more workers on the way, up to those that were asked
    for.
    """
    cells = [cell for batch in batches for cell in batch.cells]
    known = [entry for batch in batches for entry in batch.known]
    now, fewer = engine.workers(cells, workers) if cells else (workers, "")
    if fewer:
        print(fewer, file=sys.stderr)
    writers = {batch.written_to: storage.Writer(batch.written_to) for batch in batches}
    for folder in writers:
        folder.describe(finished=False)
    try:
        with progress(Console(stderr=True), cells, known, now, wrong) as advance:

            def write(batch: Batch, entry: Result) -> None:
                writers[batch.written_to].add(entry)
                if batch.keep:
                    batch.keep.add(entry)
                advance(entry)
                on_result(entry)

            run_batches(batches, now if engine.here else workers, engine, write)
    except (OSError, KeyboardInterrupt, NoRoom) as error:
        ran = len(known) + sum(writer.written for writer in writers.values())
        first, *others = writers
        shown = RunFolder(first.path.parent) if others else first
        notes = [
            f"{ran} of {count(len(known) + len(cells), 'cell')} ran",
            f"the results so far are in {shown.shown}" if ran else "",
            "the same command with --resume goes on" if storage.goes_on(first) else "",
        ]
        error.add_note("; ".join(filter(None, notes)))
        raise
    finally:
        for writer in writers.values():
            writer.close()
        if any(batch.keep for batch in batches):
            cache.prune()


def run_batches(
    batches: Sequence[Batch],
    workers: int,
    engine: Engine = LOCAL,
    on_result: Callable[[Batch, Result], None] = lambda batch, entry: None,
) -> None:
    """Run the cells of batches on an engine, several at a time if it isn't `here`; each result is handed on alone.

    0 workers are as many as an engine has room for, also on nodes that come later. Returns when all are done. An
    exception in a slot or in `on_result`, and KeyboardInterrupt, end all slots before they go on; `on_result` still
    gets what was finished by then. Called in another thread than the main one, it can't be interrupted.
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
                        on_result(parts[number], item)
                    elif refused := parts[number].refused:
                        left[number] = 0
                        refused(item)
                    else:
                        raise item
        finally:
            while not driver.events.empty():
                event = driver.events.get()
                if isinstance(event, tuple) and isinstance(event[1], Result):
                    on_result(parts[event[0]], event[1])


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
