"""The engine of a Ray cluster: an actor for each slot, pinned to its node; the driver alone decides what runs again."""

import contextlib
import functools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

from faultline.base.errors import FaultlineError, NeverReady
from faultline.base.text import count, cut, one_line
from faultline.cells.cell import Cell, reference
from faultline.fleet import cluster
from faultline.fleet.cluster import Node
from faultline.fleet.gang import NodeLost, Peer
from faultline.fleet.slot import Answer, Kit, Post
from faultline.runs import cache, gpus
from faultline.runs.driver import Driver, Plan
from faultline.runs.results import Result
from faultline.runs.schedule import Slot, Work

LOOK = 0.2  # seconds between two looks at what actors have done
NODES = 1.0  # seconds between two looks for nodes that came or went
OVERDUE = 1200.0  # seconds after which a node that says nothing of its cell is given up: a cell has far fewer
NOBODY = 120.0  # seconds that a cluster may have no node for us
PLACED = 10.0  # seconds in which nodes that have room give it
BELIEVED = 3  # times that SIGKILL ends a cell until it is taken for the cell's
GOODBYE = 10.0  # seconds in which actors may end their servers


@dataclass(frozen=True)
class Rays:
    """A Ray cluster: the one at an address, else the one that runs here, else a new one on this machine.

    The ranks of each cell are on so many of its `nodes`, as far as there are enough of them to be dealt evenly.
    """

    address: str = ""
    nodes: int = 1

    def room(self) -> int:
        """One for each processor of every node, as far as memory allows."""
        return self._room("cpu", 0)

    def _room(self, device: str, size: int) -> int:
        there = cluster.nodes(cluster.connect(self.address), device, -(-size // self.nodes))
        return len([*cluster.groups({node: node.slots for node in there}, self.nodes)])

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """As many as the nodes have room for, or as were asked for."""
        room = self._room(cells[0].device, gpus.most(cells))
        if asked and room < asked:
            return max(1, room), f"{count(room, 'worker')}, not {asked}: the cluster has no more room"
        return asked or max(1, room), ""

    @contextlib.contextmanager
    def slots(self, plan: Plan, driver: Driver) -> Iterator[None]:
        """Run cells on actors until the driver has none left; an exception ends them all at once."""
        fleet = Fleet(cluster.connect(self.address), plan, driver, self.nodes)
        thread = threading.Thread(target=fleet.run)
        thread.start()
        try:
            yield
        finally:
            fleet.ended.set()
            thread.join()


@dataclass
class Actor:
    """A slot, the actors that it is on its nodes, of which the first runs cells, and the cell that runs, if any."""

    slot: Slot
    nodes: Sequence[Node]
    handles: Sequence[Any]
    group: Any  # Ray's placement group, where there are several
    since: float
    greetings: int = 0  # that are still to come
    work: Work | None = None
    has: set[str] = field(default_factory=set)  # names of the references that it was given or made

    @property
    def first(self) -> Any:
        return self.handles[0]


class Fleet:
    """The actors of one run. Everything but `ended` belongs to the thread of `run`."""

    def __init__(self, ray: ModuleType, plan: Plan, driver: Driver, nodes: int = 1) -> None:
        self.ray, self.plan, self.driver, self.nodes = ray, plan, driver, nodes
        self.size = -(-driver.size // nodes)  # GPUs on each node
        self.ended = threading.Event()
        self.idle: list[Actor] = []
        self.busy: dict[Any, tuple[Actor, int]] = {}  # by Ray's reference to an answer: which of its nodes gives it
        self.references: dict[Cell, dict[str, Any]] = {}  # what was made for cells that share it, as Ray's objects
        self.unusable: dict[str, str] = {}  # nodes, and why
        self.number = 0
        self.kit = ray.put(Kit(plan.stack, driver.device, plan.run, nodes))
        self.looked = self.seen = time.monotonic()

    def run(self) -> None:
        """Until nothing is left: start actors, give them cells, take answers. Whatever goes wrong ends the run."""
        try:
            self.look()
            while self.driver.left and not self.ended.is_set():
                if time.monotonic() - self.looked > NODES:
                    self.look()
                self.give()
                self.hear()
                self.end_overdue()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.driver.failed(error)
        finally:
            self.close()

    @property
    def actors(self) -> list[Actor]:
        return [*self.idle, *{id(actor): actor for actor, _ in self.busy.values()}.values()]

    def look(self) -> None:
        """See which nodes there are, and start actors where there is room: on new nodes, and for what is gone."""
        self.looked = time.monotonic()
        nodes = cluster.nodes(self.ray, self.driver.device, self.size)
        alive = {node.id for node in nodes}
        for actor in [each for each in self.idle if not alive.issuperset(node.id for node in each.nodes)]:
            self.idle.remove(actor)
            self.end(actor)
        usable = [node for node in nodes if node.id not in self.unusable]
        there = Counter(node.id for actor in self.actors for node in actor.nodes)
        wanted = min(self.plan.workers, self.driver.left) - len(self.actors)
        room = cluster.groups({node: node.slots - there[node.id] for node in usable}, self.nodes)
        for group in islice(room, max(0, wanted)):
            self.start(group)
        if self.actors:
            self.seen = self.looked
        elif self.unusable and len(usable) < self.nodes:
            raise NeverReady(f"no node can run these cells: {'; '.join(self.unusable.values())}")
        elif self.looked - self.seen > NOBODY:
            raise NeverReady(f"the cluster had no node for these cells for {NOBODY:.0f} s")

    def start(self, nodes: Sequence[Node]) -> None:
        """Start an actor on each node of a slot; they greet when their stack is there and their rank server is up."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        takes = {"CPU": 1, "GPU": self.size} if self.size else {"CPU": 1}
        group, places = None, [NodeAffinitySchedulingStrategy(node_id=nodes[0].id, soft=False)]
        if len(nodes) > 1:
            chosen = [{"ray.io/node-id": node.id} for node in nodes]
            bundles = [takes] * len(nodes)
            group = self.ray.util.placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=chosen)
            if not group.wait(PLACED):
                return self.ray.util.remove_placement_group(group)
            places = [PlacementGroupSchedulingStrategy(group, number) for number in range(len(nodes))]
        self.number += 1
        options = {"num_cpus": 1, "num_gpus": self.size, "max_restarts": 0, "max_task_retries": 0}
        handles = [
            posts(self.ray).options(**options, scheduling_strategy=place).remote(self.kit, node.name)
            for node, place in zip(nodes, places, strict=True)
        ]
        slot = Slot(f"slot {self.number}", "+".join(node.id for node in nodes))
        actor = Actor(slot, nodes, handles, group, time.monotonic(), len(nodes))
        for number, handle in enumerate(handles):
            self.busy[handle.greet.remote()] = actor, number
        return None

    def give(self) -> None:
        """Give idle actors cells, with the references that these need."""
        for actor in [*self.idle]:
            work = self.driver.ready(actor.slot)
            if not work:
                continue
            self.idle.remove(actor)
            made = self.references.get(reference(work.cell), {})
            missing = made.keys() - actor.has
            actor.has |= missing
            actor.work, actor.since = work, time.monotonic()
            self.busy[actor.first.run.remote(work.cell, *(made[name] for name in missing))] = actor, 0

    def hear(self) -> None:
        """Take what actors have answered within a moment."""
        if not self.busy:
            time.sleep(LOOK)
            return
        first, _ = self.ray.wait([*self.busy], timeout=LOOK)
        if first:
            first, _ = self.ray.wait([*self.busy], num_returns=len(self.busy), timeout=0)
        for answer in first:
            if answer in self.busy:  # else it is of a slot that another answer ended
                self.take(*self.busy.pop(answer), answer)

    def take(self, actor: Actor, number: int, answer: Any) -> None:
        """Take what an actor gives: that it is ready, a result, an error of the run, or nothing more."""
        node = actor.nodes[number]
        try:
            answered = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, NodeLost):
                self.lose(actor, str(cause))
            elif not actor.greetings or not isinstance(cause, FaultlineError):
                raise cause from None
            else:
                self.refuse(actor, node, str(cause))
        except self.ray.exceptions.RayError as error:
            self.lose(actor, f"node {node.name}: {type(error).__name__} {cut(one_line(str(error)), 200)}")
        else:
            if isinstance(answered, Answer):
                self.take_result(actor, answered)
            elif answered and answered != cache.machinery():
                self.refuse(actor, node, "another version of Faultline is there")
            else:
                self.take_greeting(actor)

    def take_greeting(self, actor: Actor) -> None:
        """One more of a slot's actors is ready; once all are, the first gets to know the others, and is ready too."""
        actor.greetings -= 1
        if not actor.greetings and len(actor.nodes) > 1:
            peers = [
                Peer(self.ray, node.name, handle)
                for node, handle in zip(actor.nodes[1:], actor.handles[1:], strict=True)
            ]
            self.busy[actor.first.join.remote(peers)] = actor, 0
        elif actor.greetings <= 0:
            self.idle.append(actor)

    def take_result(self, actor: Actor, answered: Answer) -> None:
        work = actor.work
        assert work
        names = self.references.setdefault(reference(work.cell), {})
        for made in answered.made:
            actor.has.add(made.name)
            names.setdefault(made.name, self.ray.put(made))  # the actor's own object would go with it
        actor.work = None
        self.idle.append(actor)
        if killed(answered.result) and len(work.lost) < BELIEVED - 1:
            return self.driver.lost(actor.slot, f"{answered.result.detail} (on {actor.nodes[0].name})")
        return self.driver.result(actor.slot, work, answered.result)

    def refuse(self, actor: Actor, node: Node, why: str) -> None:
        """Use a node no more that can't run these cells."""
        self.end(actor)
        self.unusable[node.id] = f"node {node.name}: {why}"
        self.driver.lost(actor.slot, why)

    def lose(self, actor: Actor, why: str) -> None:
        """Give up a slot, and end it: an actor that can't be reached may still run its cell."""
        self.end(actor)
        self.driver.lost(actor.slot, why)

    def end(self, actor: Actor) -> None:
        """End what a slot is on its nodes; no answer of it is waited for."""
        self.busy = {answer: (of, number) for answer, (of, number) in self.busy.items() if of is not actor}
        for handle in actor.handles:
            with contextlib.suppress(self.ray.exceptions.RayError):
                self.ray.kill(handle)
        if actor.group:
            self.ray.util.remove_placement_group(actor.group)

    def end_overdue(self) -> None:
        """Give up slots that say nothing for longer than any cell takes."""
        now = time.monotonic()
        for actor, _ in [*self.busy.values()]:
            if actor.work and now - actor.since > OVERDUE:
                self.lose(actor, f"no word of its cell for {OVERDUE:.0f} s")

    def close(self) -> None:
        """End all actors: those that are idle in order, the others at once."""
        goodbyes = [handle.close.remote() for actor in self.idle for handle in actor.handles]
        for actor in self.actors:
            if actor not in self.idle:
                self.end(actor)
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.wait(goodbyes, num_returns=len(goodbyes), timeout=GOODBYE)
        for actor in self.idle:
            self.end(actor)


def killed(result: Result) -> bool:
    """Whether SIGKILL ended a rank where nothing of the kind is expected: the kernel kills so for memory, too."""
    return result.verdict != "expected" and any(rank.exit == -signal.SIGKILL for rank in result.ranks)


@functools.cache
def posts(ray: ModuleType) -> Any:
    """The class of actors."""

    class OnRay(Post):
        def __init__(self, kit: Kit, name: str) -> None:
            gpus = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
            super().__init__(kit, name, gpus, ray.util.get_node_ip_address())

    return ray.remote(OnRay)
