"""Engines: what runs cells, and that of this machine, whose workers have a rank server each."""

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

from faultline.base import machine
from faultline.base.axes import DEVICES
from faultline.base.errors import UsageError, unknown
from faultline.base.interpreters import ask, command
from faultline.base.text import count
from faultline.cells.cell import Cell
from faultline.runs import gpus
from faultline.runs.driver import Batch, Driver, Slot
from faultline.runs.gpus import Gpus
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer

LOOK = 0.5  # seconds between two looks for a cell, where there was none
# What a rank server may take of the machine's memory, and each of its ranks, in bytes. `make bench` measures 0.5 GB for
# a server and two ranks on the CPU; those of trainers take more. With CUDA, each rank has its libraries and a context.
SERVER = {"cpu": 1 << 30, "cuda": 0}
RANK = {"cpu": 1 << 28, "cuda": 3 << 30}


class Engine(Protocol):
    """What runs cells: the workers of this machine, or the nodes of a cluster."""

    @property
    def here(self) -> bool:
        """Whether all its cells run on this machine, on one stack at a time; others take several stacks at a time."""

    def room(self) -> int:
        """How many cells it can run at a time, if each is for the CPU."""

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """How many slots run these cells if so many are asked for (0: as many as there are), and why not all."""

    def batches(self, batch: Batch) -> Sequence[Batch]:
        """A batch as this engine runs it: cells that need another kind of slot are a batch of their own."""

    def warm(self) -> AbstractContextManager["Engine"]:
        """The same engine for several runs in a row: what can stay up between them does, until this ends."""

    def slots(self, workers: int, driver: Driver) -> AbstractContextManager[None]:
        """Start slots, which run what the driver has until nothing is left; leaving with an exception ends them at
        once."""


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
        """As many as were asked for, or one for each processor, as far as memory and GPUs allow; at least one."""
        device = cells[0].device
        wanted = max(1, min(asked or self.room(), len(cells)))
        free, takes = machine.memory(), memory(device, ranks(cells))
        why = f"each may take {takes / 2**30:.1f} GB of memory, and {free / 2**30:.1f} GB are free"
        fewer = [(max(1, free // takes), why)]
        if device == "cuda":
            here = gpus.here()
            sets, size = sized(cells, here)
            shared, number = self.per_gpu, len(here.gpus)
            has = f"{shared} at a time share a GPU" if shared > 1 else f"each has {count(size, 'GPU')} for itself"
            fewer.append((sets * shared, f"{has}, and there {'is' if number == 1 else 'are'} {number}"))
        least, why = min(fewer)
        return (least, f"{count(least, 'worker')}, not {wanted}: {why}") if least < wanted else (wanted, "")

    def batches(self, batch: Batch) -> Sequence[Batch]:
        """It runs cells of all sizes on the same slots."""
        return [batch]

    @contextlib.contextmanager
    def slots(self, workers: int, driver: Driver) -> Iterator[None]:
        """Threads that run cells, each on its rank server; an exception ends all servers, and so their cells."""
        if self.up is None:
            with self.warm() as pool, pool.slots(workers, driver):
                yield
            return
        [batch] = driver.batches
        # A cell's ranks on the same processors wait less for each other: bench/README.md has what it gives.
        cores = machine.shares(workers) if driver.device == "cpu" else [frozenset[int]()] * workers
        servers = [_server(self.up, each, batch.stack.python, driver.device, cores[each]) for each in range(workers)]
        slots = [Slot(f"worker {number}") for number in range(workers)]
        # In a server's own folder: if this process is killed, the server removes it.
        folder = tempfile.TemporaryDirectory(dir=servers[0].folder, prefix="references-")
        references = References(Path(folder.name), partial(driver.made, slots[0]))
        threads = [
            threading.Thread(target=_work, args=(slot, server, references, driver, self.per_gpu))
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


def _work(slot: Slot, server: RankServer, references: References, driver: Driver, per_gpu: int) -> None:
    """A worker: run cells one after the other, until none is left or its server is killed."""
    run = driver.batches[slot.batch].run
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


def memory(device: str, ranks: int) -> int:
    """What a worker whose cells have so many ranks may take, in bytes."""
    return SERVER[device] + RANK[device] * ranks


def ranks(cells: Iterable[Cell]) -> int:
    """The most ranks that any of these cells has, also in the half of a life that saves."""
    return max(max(cell.world_size, cell.saved_by) for cell in cells)


def sized(cells: Sequence[Cell], here: Gpus) -> tuple[int, int]:
    """How many sets of GPUs there are, and how many GPUs are in one: as many as most cells want."""
    wants = sorted(min(gpus.needed(cell), len(here.gpus)) for cell in cells)
    size = max(1, wants[len(wants) // 2])
    return max(1, len(here.gpus) // size), size


def check_cells(cells: Sequence[Cell], engine: Engine = LOCAL) -> None:
    """Refuse cells that an engine can't run together: none, those of several devices, or of one that isn't here."""
    devices = {cell.device for cell in cells}
    if len(devices) != 1:
        raise UsageError("give cells of one device at a time" if cells else "no cell matches all of these options")
    if engine.here:
        check_device(devices.pop())


def check_device(device: str, python: str = sys.executable) -> None:
    """Refuse CUDA where there is no GPU at all; a child looks, because this process never imports torch."""
    if device not in DEVICES:
        raise unknown("device", device, DEVICES)
    if device != "cuda":
        return
    if ask(command(python, "-c", "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)")).returncode:
        raise UsageError("torch sees no GPU here; leave out the device to run on the CPU")
