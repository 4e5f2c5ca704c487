"""Run cells on an engine: each result is handed on as it comes, and an interruption loses none."""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from faultline.cells.cell import Cell
from faultline.runs import pool
from faultline.runs.driver import Driver, Engine, Plan
from faultline.runs.results import Result

LOOK = 0.5  # seconds after which a wait for results begins again


def run_all(
    cells: Sequence[Cell],
    plan: Plan,
    done: Callable[[Result], None],
    engine: Engine = pool.LOCAL,
) -> None:
    """Run cells on an engine as planned; `done` is called with each result, one at a time.

    Returns when all are done. An exception in a slot or in `done`, and
    KeyboardInterrupt, end all slots before they go on; `done` still gets what
    was finished by then. Called in another thread than the main one, it can't be interrupted.
    """
    if not cells:
        return
    plan = replace(plan, workers=max(1, min(plan.workers, len(cells))))
    driver = Driver(cells, plan.stack.versions)
    with _interrupts_given_to(driver.failed):
        try:
            with engine.slots(plan, driver):
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
