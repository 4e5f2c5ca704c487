"""Run cells on an engine: each result is handed on as it comes, and an interruption loses none."""

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from faultline.base.errors import Terminated, terminate
from faultline.cells.cell import Cell
from faultline.runs import pool
from faultline.runs.driver import Driver, Engine, Event, Part, Plan
from faultline.runs.results import Result
from faultline.runs.runner import RunCell, run_cell

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
    run_parts([Part(cells, plan.stack, done)], plan.workers, plan.run, engine)


def run_parts(asked: Sequence[Part], workers: int, run: RunCell = run_cell, engine: Engine = pool.LOCAL) -> None:
    """Run the cells of several parts, as `run_all` does: at a time, if the engine isn't `here`.

    0 workers are as many as an engine has room for, also on nodes that come later.
    """
    parts = [each for part in asked if part.cells for each in engine.parts(part)]
    if not parts:
        return
    driver = Driver(parts)
    left = [len(part.cells) for part in parts]
    with _interrupts_given_to(driver.failed):
        try:
            with engine.slots(min(workers or driver.left, driver.left), run, driver):
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
