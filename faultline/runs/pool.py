"""The engine of this machine: workers, each with a rank server."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

from faultline.base import machine
from faultline.cells.cell import Cell
from faultline.runs import gpus
from faultline.runs.driver import Driver, Plan
from faultline.runs.runner import References
from faultline.runs.schedule import Slot
from faultline.runs.supervisor import RankServer
from faultline.runs.workers import bounded

LOOK = 0.5  # seconds between two looks for a cell, where there was none


class Pool:
    """The engine of this machine."""

    def room(self) -> int:
        """One for each processor."""
        return machine.cores()

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """As many as were asked for, or one for each processor, as far as memory and GPUs allow."""
        return bounded(cells, asked or self.room())

    @contextlib.contextmanager
    def slots(self, plan: Plan, driver: Driver) -> Iterator[None]:
        """Threads that run cells, each on its rank server; an exception ends all servers, and so their cells."""
        servers = [RankServer(plan.stack.python, device=driver.device) for _ in range(plan.workers)]
        # In a server's own folder: if this process is killed, the server removes it.
        references = References(servers[0].folder, driver.made)
        threads = [
            threading.Thread(target=_work, args=(Slot(f"worker {number}"), server, references, plan, driver))
            for number, server in enumerate(servers)
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
            for server in servers:
                server.close()


LOCAL = Pool()


def _work(slot: Slot, server: RankServer, references: References, plan: Plan, driver: Driver) -> None:
    """A worker: run cells one after the other, until none is left or its server is killed."""
    try:
        while driver.left and not server.killed:
            if not (work := driver.ready(slot, LOOK)):
                continue
            with gpus.lent(work.cell, lambda: server.killed) as server.gpus:
                driver.result(slot, work, plan.run(server, references, work.cell))
    except BaseException as error:  # noqa: BLE001 - raised again in the main thread
        driver.failed(error)
