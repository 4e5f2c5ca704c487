"""A run: cells go to rank servers, judgements come back, and every result is on disk at once."""

from __future__ import annotations

import contextlib
import functools
import json
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from faultline import blame, expectations, oracle, results
from faultline.catalogue import REPROS, Failure, failures
from faultline.matrix import DEVICES, Cell, every_cell, possible
from faultline.oracle import NO_REFERENCE, Judgement, Outcome
from faultline.ranks import Ended, NeverReady, RankServer, ServerDied
from faultline.report import one_line
from faultline.server import STACK

LOOK = 0.5  # seconds after which a wait for results is begun anew
TRIES = 3  # for a reference whose rank dies
DIED = f"its rank died or hung {TRIES} times"


class References:
    """Reference runs in one folder, each made once, whichever worker needs it first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, server: RankServer, cell: Cell, target: Mapping[str, Any] | None = None) -> tuple[Path, str]:
        """The reference for a cell and, where it could not be made, why.

        That of a `target` (see `targets.Module`) is one for each world size; what was seen of it is in `.facts` beside.
        """
        of = replace(cell, strategy="single", checkpointing="off", world_size=1)
        job = {"target": target} if target else {}
        name = f"{of.id}/{target['world_size']}" if target else of.id
        path = self.folder / (name.replace("/", "+") + ".safetensors")
        failed = path.with_suffix(".failed")
        with FileLock(path.with_suffix(".lock")):
            # An error is the scenario's and comes again; a rank that died may have been anybody's victim, unless the
            # code that it ran is.
            for _ in range(1 if target else TRIES):
                if path.exists() or failed.exists():
                    break
                ended = server.run({"cell": of.id, "reference": str(path), "record": True, **job}, 1)
                report = ended.ranks[0].report
                if report and "facts" in report:
                    path.with_suffix(".facts").write_text(json.dumps(report["facts"]))
                if report and report["error"]:
                    failed.write_text(_why(report["error"]))
                elif target and not path.exists():
                    failed.write_text(f"faultline.runner.Died: the process that builds and trains it {_how(ended)}")
        if path.exists():
            return path, ""
        return path, failed.read_text() if failed.exists() else DIED


def _why(error: Mapping[str, Any]) -> str:
    """The traceback of a reference's error; where that is this suite's own fault, the last line says so."""
    if not error.get("own"):
        return str(error["traceback"])
    own = blame.told(error["own"], one_line(f"{error['type']}: {error['message']}"))
    return f"{error['traceback']}\nfaultline.blame.Own: {own}"


def _how(ended: Ended) -> str:
    """How the only rank of a run ended that left no report."""
    [end] = ended.ranks
    if ended.hang:
        return f"hangs: {ended.hang}" + (f"; {place}" if (place := oracle.innermost(end.stack)) else "")
    how = (
        f"was killed by {oracle.signal_name(-(end.exit or 0))}"
        if (end.exit or 0) < 0
        else f"left with exit code {end.exit}"
    )
    return ": ".join(filter(None, (how, oracle.last_words(end.log))))


Run = Callable[[RankServer, References, Cell], results.Result]


def run_cell(server: RankServer, references: References, cell: Cell, inject: str | None = None) -> results.Result:
    """Run one cell and say what it did and whether that was expected.

    `inject` names a change to make to the run (see `run.injection`). Raises what `surviving` raises.
    """
    failure = failures()[cell.failure]

    def go() -> tuple[Ended, Judgement]:
        path, problem = references.file(server, cell)
        if problem:
            return Ended([]), without_reference(problem)
        with checkpoint(server) as folder:
            job = {"cell": cell.id, "checkpoint": str(folder)}
            ended = server.run({**job, "reference": str(path), "inject": inject}, cell.world_size)
            loaded = server.run({**job, "load": True}, 1) if folder.exists() else None
        return ended, oracle.judge(cell, failure, ended, loaded)

    ended, judged = surviving(server, go)
    versions = server.greeting.get("versions", {})
    expected = expectations.expect(rules(failure), cell, versions)
    verdict = expectations.verdict(expected, judged.outcome, judged.signature)
    return results.result(cell, judged, ended, results.stack_name(versions), expected, verdict)


@contextlib.contextmanager
def checkpoint(server: RankServer) -> Iterator[Path]:
    """A folder that a cell's ranks may make to save to; it is gone with the cell."""
    folder = server.folder / "checkpoint"
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def surviving(server: RankServer, go: Callable[[], tuple[Ended, Judgement]]) -> tuple[Ended, Judgement]:
    """What a run gives, and how it is judged.

    A rank server that dies says nothing of the cell: it runs once more on a fresh one, unless the server was killed on
    purpose. Raises NeverReady where none can be had.
    """
    try:
        return go()
    except ServerDied:
        if server.killed:
            raise
    try:
        return go()
    except ServerDied as died:
        if server.killed or isinstance(died, NeverReady):
            raise
        return Ended([]), Judgement(Outcome.INVALID, "server", str(died))


def without_reference(problem: str) -> Judgement:
    """What is known of a cell whose reference could not be made: what one process can't build, no strategy can."""
    if problem == DIED:
        return Judgement(Outcome.INVALID, "reference-died", f"no reference run: {problem}")
    last = problem.strip().splitlines()[-1]
    kind, _, reason = last.partition(": ")
    if kind.endswith(".Impossible"):
        return Judgement(Outcome.IMPOSSIBLE, "", reason)
    if kind.endswith("blame.Own"):
        return Judgement(Outcome.INVALID, oracle.OWN, reason)
    return Judgement(Outcome.INVALID, NO_REFERENCE, f"{last} (in one process: there is no reference)")


@functools.cache
def rules(failure: Failure) -> tuple[expectations.Rule, ...]:
    """The rules of a failure's expected.toml, held against every cell that it can have."""
    known = expectations.load(REPROS / failure.name / "expected.toml")
    cells = [
        cell
        for device in DEVICES
        for cell, variant in every_cell({failure.name: failure}, device)
        if possible(cell, variant)
    ]
    expectations.check(failure, known, cells, STACK)
    return known


def run_all(
    cells: Sequence[Cell],
    workers: int,
    done: Callable[[results.Result], None],
    python: str = sys.executable,
    run: Run | None = None,
) -> None:
    """Run cells on `workers` rank servers, with `run_cell` or what takes its place.

    `done` is called with each result, one at a time.

    Returns when all are done. An exception in a worker or in `done`, and
    KeyboardInterrupt, end all servers before they go on; `done` still gets what
    was finished by then. Call it in the main thread.
    """
    if not cells:
        return
    waiting: queue.SimpleQueue[Cell] = queue.SimpleQueue()
    for cell in cells:
        waiting.put(cell)
    finished: queue.SimpleQueue[results.Result | BaseException | None] = queue.SimpleQueue()
    with _interrupts_given_to(finished.put):
        servers = [RankServer(python, device=cells[0].device) for _ in range(max(1, min(workers, len(cells))))]
        # In a server's own folder: if this process is killed, the server removes it.
        references = References(servers[0].folder)
        threads = [
            threading.Thread(target=_work, args=(server, references, waiting, finished, run or run_cell))
            for server in servers
        ]
        for thread in threads:
            thread.start()
        try:
            running = len(threads)
            while running:
                item = _next(finished)
                if item is None:
                    running -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    done(item)
        except BaseException:
            for server in servers:
                server.kill()  # or the threads would see their cells to the end
            raise
        finally:
            for thread in threads:
                thread.join()
            for server in servers:
                server.close()
            while not finished.empty():
                item = finished.get()
                if isinstance(item, dict):
                    done(item)


def _next(finished: queue.SimpleQueue[results.Result | BaseException | None]) -> results.Result | BaseException | None:
    """The next item. A signal that comes as the wait begins doesn't end it, and is only seen between two waits."""
    while True:
        with contextlib.suppress(queue.Empty):
            return finished.get(timeout=LOOK)


def _work(
    server: RankServer,
    references: References,
    waiting: queue.SimpleQueue[Cell],
    finished: queue.SimpleQueue[results.Result | BaseException | None],
    run: Run,
) -> None:
    """A worker: run waiting cells one after the other; None says that it has come to its end."""
    try:
        while not server.killed:
            try:
                cell = waiting.get_nowait()
            except queue.Empty:
                break
            finished.put(run(server, references, cell))
        finished.put(None)
    except BaseException as error:  # noqa: BLE001 - raised again in the main thread
        finished.put(error)


@contextlib.contextmanager
def _interrupts_given_to(put: Callable[[BaseException], None]) -> Iterator[None]:
    """Have Ctrl-C wait its turn in a queue: so it comes after what was finished before it, and can't stop the end."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # somebody wants it ignored, or sees to it
        return
    signal.signal(signal.SIGINT, lambda *_: put(KeyboardInterrupt()))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
