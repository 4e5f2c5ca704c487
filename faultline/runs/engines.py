"""Run cells on an engine: each result is handed on as it comes, and an interruption loses none."""

import contextlib
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from faultline.cells.cell import Cell
from faultline.runs import pool, runner
from faultline.runs.driver import Driver, Engine, Plan
from faultline.runs.results import Result
from faultline.runs.runner import RunCell

LOOK = 0.5  # seconds after which a wait for results begins again


def run_all(
    cells: Sequence[Cell],
    workers: int,
    done: Callable[[Result], None],
    python: str = sys.executable,
    run: RunCell | None = None,
    engine: Engine = pool.local,
) -> None:
    """Run cells on `workers` slots of an engine, with `run_cell` or what takes its place.

    `done` is called with each result, one at a time.

    Returns when all are done. An exception in a slot or in `done`, and
    KeyboardInterrupt, end all slots before they go on; `done` still gets what
    was finished by then. Called in another thread than the main one, it can't be interrupted.
    """
    if not cells:
        return
    driver = Driver(cells, {})
    plan = Plan(cells[0].device, max(1, min(workers, len(cells))), python, run or runner.run_cell)
    with _interrupts_given_to(driver.failed):
        try:
            with engine(plan, driver):
                for _ in cells:
                    item = _next(driver.events)
                    if isinstance(item, BaseException):
                        raise item
                    done(item)
        finally:
            while not driver.events.empty():
                item = driver.events.get()
                if isinstance(item, Result):
                    done(item)


def _next(events: queue.SimpleQueue[Result | BaseException]) -> Result | BaseException:
    """The next item. A signal that comes as the wait begins doesn't end it, and is only seen between two waits."""
    while True:
        with contextlib.suppress(queue.Empty):
            return events.get(timeout=LOOK)


@contextlib.contextmanager
def _interrupts_given_to(put: Callable[[BaseException], None]) -> Iterator[None]:
    """Have Ctrl-C wait its turn in a queue: so it comes after what was finished before it, and can't stop the end."""
    in_main = threading.current_thread() is threading.main_thread()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or not in_main:
        yield  # somebody wants it ignored, or sees to it; another thread is never interrupted
        return
    signal.signal(signal.SIGINT, lambda *_: put(KeyboardInterrupt()))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
