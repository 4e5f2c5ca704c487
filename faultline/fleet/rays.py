"""The engine of a Ray cluster: an actor for each slot, pinned to its node; the driver alone decides what runs again."""

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from faultline.base.text import count
from faultline.cells.cell import Cell
from faultline.fleet import cluster
from faultline.fleet.cluster import Node
from faultline.fleet.running import Fleet
from faultline.runs import engines, gpus
from faultline.runs.driver import Batch, Driver


@dataclass(frozen=True)
class Rays:
    """A Ray cluster: the one at an address, else the one that runs here, else a new one on this machine.

    The ranks of each cell are on so many of its `nodes`, as far as there are enough of them to be dealt evenly.
    """

    address: str = ""
    nodes: int = 1
    here: ClassVar[bool] = False

    @contextlib.contextmanager
    def warm(self) -> Iterator["Rays"]:
        """The cluster stays up by itself, and slots take a node each time anew."""
        yield self

    def room(self) -> int:
        """One for each processor of every node, as far as memory allows."""
        return self._room("cpu", 2, 0)

    def _room(self, device: str, ranks: int, size: int) -> int:
        there = cluster.nodes(cluster.connect(self.address), device, -(-ranks // self.nodes))
        each = min(-(-size // self.nodes), most(there))
        slots = [min(node.slots, node.gpus // each) if each else node.slots for node in there]
        # So many groups of nodes, none of which is in a group twice.
        groups = range(sum(slots) // self.nodes + 1)
        return max(number for number in groups if sum(min(number, free) for free in slots) >= number * self.nodes)

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """As many as the nodes have room for now, if each cell takes no more than the smallest, or as were asked for.

        Nodes that come later have slots too.
        """
        room = self._room(cells[0].device, engines.ranks(cells), min(map(gpus.needed, cells)))
        if asked and room < asked:
            return max(1, room), f"{count(room, 'worker')} at first, not {asked}: the cluster has no more room yet"
        return asked or max(1, room), ""

    def batches(self, batch: Batch) -> Sequence[Batch]:
        """One for each number of GPUs, for a slot keeps its own. Cells that want more than nodes have share all of
        these."""
        if batch.cells[0].device == "cpu":
            return [batch]
        there = cluster.nodes(cluster.connect(self.address), batch.cells[0].device, 1)
        by_size: dict[int, list[Cell]] = {}
        for cell in batch.cells:
            by_size.setdefault(max(1, min(gpus.needed(cell), self.nodes * most(there))), []).append(cell)
        return [replace(batch, cells=cells, gpus=size) for size, cells in sorted(by_size.items())]

    @contextlib.contextmanager
    def slots(self, workers: int, driver: Driver) -> Iterator[None]:
        """Run cells on at most so many actors until the driver has none left; an exception ends them all at once."""
        fleet = Fleet(cluster.connect(self.address), workers, driver, self.nodes)
        thread = threading.Thread(target=fleet.run)
        thread.start()
        try:
            yield
        finally:
            fleet.ended.set()
            thread.join()


def most(nodes: Iterable[Node]) -> int:
    """GPUs of the node that has most of them."""
    return max((node.gpus for node in nodes), default=0)
