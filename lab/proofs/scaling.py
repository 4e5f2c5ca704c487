"""How far a cluster carries: recorded durations replayed through its schedule, and how fast cells are handed out."""

import heapq
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from faultline.base.console import write_line
from faultline.base.errors import EXIT_AS_EXPECTED
from faultline.base.packages import TODAY
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import selection
from faultline.cells.cell import Cell, reference
from faultline.cells.expected import Expectation
from faultline.cells.selection import Selection
from faultline.fleet import cluster
from faultline.fleet.cluster import Node
from faultline.fleet.places import Room, best
from faultline.fleet.rays import Rays
from faultline.runs import measurement
from faultline.runs.driver import Batch, Driver, Slot, Work
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.results import Result, result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer
from faultline.stacks import environments
from faultline.stacks.environments import Environment
from lab.proofs import soak
from lab.proofs.overhead import measured

SLOTS = (10, 100, 1000)
STACKS = 10
ON_NODE = 10  # slots of a node
# Seconds, measured on two idle cores: until an environment is made, and until its first rank server has compiled and
# imported its libraries.
MADE, FIRST = 5.0, 17.0


@dataclass(frozen=True)
class Replay:
    """A replayed run: seconds until its last cell had ended, and the share of all slots' time that cells took, and the
    references that they are held against."""

    seconds: float
    efficiency: float


@dataclass
class Simulated:
    """A cluster in a time of its own, whose cells take as long as was recorded.

    It has the driver and the places of a real one. `ready` has when the first rank server of each part is up on a node.
    """

    driver: Driver
    nodes: Sequence[Node]
    lasts: Mapping[Cell, float]
    now: float = 0.0
    coming: list[tuple[float, int, Slot, Work | None]] = field(default_factory=list)
    opened: dict[Slot, Node] = field(default_factory=dict)
    ready: dict[str, dict[int, float]] = field(default_factory=dict)
    made: set[tuple[int, Cell]] = field(default_factory=set)
    number: int = 0

    def run(self) -> float:
        """Run all cells; gives the seconds that it took."""
        idle: list[Slot] = []
        self.open()
        while self.driver.left:
            self.now, _, slot, work = heapq.heappop(self.coming)
            if work:
                self.driver.result(slot, work, nothing(None, None, work.cell))
            idle = [each for each in (*idle, slot) if not self.give(each)]
            if spare := next(filter(self.driver.spare, idle), None):
                idle.remove(spare)
                self.driver.lost(spare, "")
                del self.opened[spare]
                self.open()
        return self.now

    def open(self) -> None:
        """Start slots wherever there is room."""
        rooms = {node.id: Room(node, node.slots, 0) for node in self.nodes}
        for node in self.opened.values():
            rooms[node.id] = rooms[node.id].without(0)
        while place := best(rooms.values(), self.driver.schedules, 1, self.ready):
            [node] = place.nodes
            slot = Slot(f"slot {self.number}", node.id, place.batch)
            rooms[node.id] = rooms[node.id].without(0)
            self.opened[slot] = node
            self.driver.opened(slot)
            first = self.ready.setdefault(node.id, {}).setdefault(place.batch, self.now + MADE + FIRST)
            self.after(max(first - self.now, measurement.START), slot)

    def give(self, slot: Slot) -> bool:
        """Give a slot its next cell, if there is one; who is first makes the reference, by two runs."""
        work = self.driver.ready(slot)
        if work:
            key = slot.batch, reference(work.cell)
            self.after(self.lasts[work.cell] + (0.0 if key in self.made else 2 * self.lasts[key[1]]), slot, work)
            self.made.add(key)
        return bool(work)

    def after(self, seconds: float, slot: Slot, work: Work | None = None) -> None:
        """Have a slot be ready, or done with a cell, so many seconds from now."""
        self.number += 1
        heapq.heappush(self.coming, (self.now + seconds, self.number, slot, work))


def run(cells: int, overhead: int) -> int:
    """Print what the schedule makes of 10 to 1,000 slots, how many cells a second a driver hands out here, and what Ray
    costs where some cells are to show it."""
    matrix, console = selection.select(failures(), Selection()), Console()
    table = Table("slots", "time", "efficiency", title=f"{count(len(matrix), 'cell')} on each of {STACKS} stacks")
    for slots in SLOTS:
        replayed = replay(matrix, STACKS, slots)
        table.add_row(f"{slots:,}", measurement.about(replayed.seconds), f"{replayed.efficiency:.2f}")
    console.print(table)
    write_line(
        console,
        f"Replayed from recorded durations; {ON_NODE} slots a node. An environment takes {MADE:.0f} s on each node, its"
        f" first rank server {FIRST:.0f} s, each other {measurement.START:.0f} s.",
    )
    rate, bare = handed_out(matrix, cells)
    write_line(
        console,
        f"{rate:,.0f} cells a second, of {cells:,} that do nothing, on {soak.NODES} Ray nodes of this machine; bare"
        f" actors there take {bare:,.0f} calls a second.",
    )
    if overhead:
        write_line(console, measured(overhead))
    return EXIT_AS_EXPECTED


def replay(cells: Sequence[Cell], stacks: int, slots: int) -> Replay:
    """Run cells on each of several stacks in no time."""
    alone = {reference(cell) for cell in cells}
    likely = dict(zip(cells, measurement.likely(cells), strict=True))
    lasts = dict(zip(alone, measurement.likely(alone), strict=True)) | likely
    parts = [Batch(cells, Environment("", f"{number}")) for number in range(stacks)]
    nodes = [Node(f"{n}", f"node {n}", min(ON_NODE, slots - n * ON_NODE)) for n in range(-(-slots // ON_NODE))]
    seconds = Simulated(Driver(parts), nodes, lasts).run()
    work = sum(likely.values()) + sum(2 * lasts[cell] for cell in alone)
    return Replay(seconds, stacks * work / (slots * seconds))


def nothing(server: RankServer | None, references: References | None, cell: Cell) -> Result:
    """Stands in for a cell's run: it trains, in no time."""
    return result(cell, Judgement(Outcome.TRAINS), Ended([]), {}, Expectation(), "expected")


def handed_out(matrix: Sequence[Cell], cells: int) -> tuple[float, float]:
    """Cells a second that a driver gives to actors on Ray nodes of this machine, and takes the results of; and calls a
    second of as many bare actors there, each with one call at a time."""
    times: list[float] = []
    environment = environments.chosen(TODAY, "")
    with soak.fires(random.Random(0)) as fire:
        bare = called(fire.address, cells)
        drawn = random.Random(0).choices(matrix, k=cells)
        batch = Batch(drawn, environment, run=nothing, done=lambda entry: times.append(time.monotonic()))
        measurement.run_batches([batch], soak.NODES, Rays(fire.address))
    return len(times) / (times[-1] - times[0]), bare


def called(address: str, calls: int) -> float:
    """Calls a second of actors that give back what they are given, one on each node."""
    ray = cluster.connect(address)

    class Bare:
        def call(self, text: str) -> str:
            return text

    actors = [ray.remote(Bare).options(num_cpus=1).remote() for _ in range(soak.NODES)]
    ray.get([actor.call.remote("") for actor in actors])
    busy, begun = {actor.call.remote(""): actor for actor in actors}, time.monotonic()
    for _ in range(calls):
        [there], _ = ray.wait([*busy], timeout=None)
        ray.get(there)
        actor = busy.pop(there)
        busy[actor.call.remote("")] = actor
    rate = calls / (time.monotonic() - begun)
    for actor in actors:
        ray.kill(actor)
    return rate
