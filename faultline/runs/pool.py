"""The engine of this machine: workers, each with a rank server."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from faultline.base import machine
from faultline.cells.cell import Cell
from faultline.runs import gpus
from faultline.runs.driver import Driver, Part
from faultline.runs.runner import References, RunCell
from faultline.runs.schedule import Slot
from faultline.runs.supervisor import RankServer
from faultline.runs.workers import bounded

LOOK = 0.5  # seconds between two looks for a cell, where there was none


@dataclass(frozen=True)
class Pool:
    """The engine of this machine. Its workers are all on one stack, and its GPUs are lent to each cell.

    So many cells share a GPU at a time as `per_gpu` says. Rank servers that are `up` stay for the next run.
    """

    per_gpu: int = 1
    up: list[RankServer] | None = None
    here: ClassVar[bool] = True

    @contextlib.contextmanager
    def warm(self) -> Iterator["Pool"]:
        """The same, with rank servers that stay up from one run to the next, until the end of this."""
        up: list[RankServer] = []
        try:
            yield replace(self, up=up)
        finally:
            for server in up:
                server.close()

    def room(self) -> int:
        """One for each processor."""
        return machine.cores()

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """As many as were asked for, or one for each processor, as far as memory and GPUs allow."""
        return bounded(cells, asked or self.room(), self.per_gpu)

    def parts(self, part: Part) -> Sequence[Part]:
        """It runs cells of all sizes on the same slots."""
        return [part]

    @contextlib.contextmanager
    def slots(self, workers: int, run: RunCell, driver: Driver) -> Iterator[None]:
        """Threads that run cells, each on its rank server; an exception ends all servers, and so their cells."""
        if self.up is None:
            with self.warm() as pool, pool.slots(workers, run, driver):
                yield
            return
        [part] = driver.parts
        # A cell's ranks on the same processors wait less for each other: bench/README.md has what it gives.
        cores = machine.shares(workers) if driver.device == "cpu" else [frozenset[int]()] * workers
        servers = [_server(self.up, each, part.stack.python, driver.device, cores[each]) for each in range(workers)]
        slots = [Slot(f"worker {number}") for number in range(workers)]
        # In a server's own folder: if this process is killed, the server removes it.
        folder = tempfile.TemporaryDirectory(dir=servers[0].folder, prefix="references-")
        references = References(Path(folder.name), partial(driver.made, slots[0]))
        threads = [
            threading.Thread(target=_work, args=(slot, server, references, run, driver, self.per_gpu))
            for slot, server in zip(slots, servers, strict=True)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        except BaseException:
            for server in servers:
                server.kill()
            raise
        finally:
            for thread in threads:
                thread.join()
            folder.cleanup()


LOCAL = Pool()


def _work(slot: Slot, server: RankServer, references: References, run: RunCell, driver: Driver, per_gpu: int) -> None:
    """A worker: run cells one after the other, until none is left or its server is killed."""
    try:
        while driver.left and not server.killed:
            if not (work := driver.ready(slot, LOOK)):
                continue
            with gpus.lent(work.cell, lambda: server.killed, per_gpu) as server.gpus:
                driver.result(slot, work, run(server, references, work.cell))
    except BaseException as error:  # noqa: BLE001 - raised again in the main thread
        driver.failed(error)


def _server(up: list[RankServer], number: int, python: str, device: str, cores: frozenset[int]) -> RankServer:
    """The rank server of a worker: the one that is up, if it is of that stack and device and lives."""
    if number < len(up) and (up[number].python, up[number].device, up[number].killed) == (python, device, False):
        up[number].use(cores)
        return up[number]
    server = RankServer(python, device=device, cores=cores)
    for before in up[number : number + 1]:
        before.close()
    up[number : number + 1] = [server]
    return server
