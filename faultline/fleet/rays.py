"""The engine of a Ray cluster: an actor for each slot, pinned to its node; the driver alone decides what runs again."""

import contextlib
import functools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from faultline.base.errors import FaultlineError, NeverReady
from faultline.base.text import count, cut, one_line
from faultline.cells.cell import Cell, reference
from faultline.fleet import cluster
from faultline.fleet.cluster import Node
from faultline.fleet.slot import Answer, Kit, Post
from faultline.runs import cache, gpus
from faultline.runs.driver import Driver, Plan
from faultline.runs.schedule import Slot, Work

LOOK = 0.2  # seconds between two looks at what actors have done
NODES = 1.0  # seconds between two looks for nodes that came or went
OVERDUE = 1200.0  # seconds after which a node that says nothing of its cell is given up: a cell has far fewer
NOBODY = 120.0  # seconds that a cluster may have no node for us
GOODBYE = 10.0  # seconds in which actors may end their servers


@dataclass(frozen=True)
class Rays:
    """A Ray cluster: the one at an address, else the one that runs here, else a new one on this machine."""

    address: str = ""

    def room(self) -> int:
        """One for each processor of every node, as far as memory allows."""
        return sum(node.slots for node in cluster.nodes(cluster.connect(self.address), "cpu", 0))

    def workers(self, cells: Sequence[Cell], asked: int) -> tuple[int, str]:
        """As many as the nodes have room for, or as were asked for."""
        ray = cluster.connect(self.address)
        nodes = cluster.nodes(ray, cells[0].device, gpus.most(cells))
        room = sum(node.slots for node in nodes)
        if asked and room < asked:
            return max(1, room), f"{count(room, 'worker')}, not {asked}: {count(len(nodes), 'node')} have no more room"
        return asked or max(1, room), ""

    @contextlib.contextmanager
    def slots(self, plan: Plan, driver: Driver) -> Iterator[None]:
        """Run cells on actors until the driver has none left; an exception ends them all at once."""
        fleet = Fleet(cluster.connect(self.address), plan, driver)
        thread = threading.Thread(target=fleet.run)
        thread.start()
        try:
            yield
        finally:
            fleet.ended.set()
            thread.join()


@dataclass
class Actor:
    """An actor, the slot that it is, and the cell that it runs since some time, if any."""

    slot: Slot
    node: Node
    handle: Any
    since: float
    work: Work | None = None
    has: set[str] = field(default_factory=set)  # names of the references that it was given or made


class Fleet:
    """The actors of one run. Everything but `ended` belongs to the thread of `run`."""

    def __init__(self, ray: ModuleType, plan: Plan, driver: Driver) -> None:
        self.ray, self.plan, self.driver = ray, plan, driver
        self.ended = threading.Event()
        self.idle: list[Actor] = []
        self.busy: dict[Any, Actor] = {}  # by Ray's reference to what they will answer
        self.references: dict[Cell, dict[str, Any]] = {}  # what was made for cells that share it, as Ray's objects
        self.unusable: dict[str, str] = {}  # nodes, and why
        self.number = 0
        self.kit = ray.put(Kit(plan.stack, driver.device, plan.run))
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
        return [*self.idle, *self.busy.values()]

    def look(self) -> None:
        """See which nodes there are, and start actors where there is room: on new nodes, and for what is gone."""
        self.looked = time.monotonic()
        nodes = cluster.nodes(self.ray, self.driver.device, self.driver.size)
        alive = {node.id for node in nodes}
        self.idle = [actor for actor in self.idle if actor.node.id in alive]
        usable = [node for node in nodes if node.id not in self.unusable]
        there = Counter(actor.node.id for actor in self.actors)
        wanted = min(self.plan.workers, self.driver.left) - len(self.actors)
        room = [
            node
            for number in range(max((n.slots for n in usable), default=0))
            for node in usable
            if there[node.id] <= number < node.slots
        ]
        for node in room[: max(0, wanted)]:
            self.start(node)
        if self.actors:
            self.seen = self.looked
        elif self.unusable and not usable:
            raise NeverReady(f"no node can run these cells: {'; '.join(self.unusable.values())}")
        elif self.looked - self.seen > NOBODY:
            raise NeverReady(f"the cluster had no node for these cells for {NOBODY:.0f} s")

    def start(self, node: Node) -> None:
        """Start an actor on a node; it greets when its stack is there and its rank server is up."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.number += 1
        options = {
            "num_cpus": 1,
            "num_gpus": self.driver.size,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node.id, soft=False),
        }
        handle = posts(self.ray).options(**options).remote(self.kit)
        actor = Actor(Slot(f"slot {self.number}", node.id), node, handle, time.monotonic())
        self.busy[handle.greet.remote()] = actor

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
            self.busy[actor.handle.run.remote(work.cell, *(made[name] for name in missing))] = actor

    def hear(self) -> None:
        """Take what actors have answered within a moment."""
        if not self.busy:
            time.sleep(LOOK)
            return
        first, _ = self.ray.wait([*self.busy], timeout=LOOK)
        if first:
            first, _ = self.ray.wait([*self.busy], num_returns=len(self.busy), timeout=0)
        for answer in first:
            self.take(self.busy.pop(answer), answer)

    def take(self, actor: Actor, answer: Any) -> None:
        """Take what an actor gives: that it is ready, a result, an error of the run, or nothing more."""
        try:
            answered = self.ray.get(answer)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if actor.work or not isinstance(cause, FaultlineError):
                raise cause from None
            self.refuse(actor, str(cause))
        except self.ray.exceptions.RayError as error:
            self.lose(actor, f"{type(error).__name__} {cut(one_line(str(error)), 200)}")
        else:
            if isinstance(answered, Answer):
                self.take_result(actor, answered)
            elif answered != cache.machinery():
                self.refuse(actor, "another version of Faultline is there")
            else:
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
        self.driver.result(actor.slot, work, answered.result)

    def refuse(self, actor: Actor, why: str) -> None:
        """Use a node no more that can't run these cells."""
        self.ray.kill(actor.handle)
        self.unusable[actor.node.id] = f"node {actor.node.name}: {why}"
        self.driver.lost(actor.slot, why)

    def lose(self, actor: Actor, why: str) -> None:
        """Give up an actor, and end it: one that can't be reached may still run its cell."""
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.kill(actor.handle)
        self.driver.lost(actor.slot, f"node {actor.node.name}: {why}")

    def end_overdue(self) -> None:
        """Give up actors that say nothing for longer than any cell takes."""
        now = time.monotonic()
        for answer, actor in [*self.busy.items()]:
            if actor.work and now - actor.since > OVERDUE:
                del self.busy[answer]
                self.lose(actor, f"no word of its cell for {OVERDUE:.0f} s")

    def close(self) -> None:
        """End all actors: those that are idle in order, the others at once."""
        goodbyes = [actor.handle.close.remote() for actor in self.idle]
        for actor in self.busy.values():
            self.ray.kill(actor.handle)
        with contextlib.suppress(self.ray.exceptions.RayError):
            self.ray.wait(goodbyes, num_returns=len(goodbyes), timeout=GOODBYE)
        for actor in self.idle:
            self.ray.kill(actor.handle)


@functools.cache
def posts(ray: ModuleType) -> Any:
    """The class of actors."""

    class OnRay(Post):
        def __init__(self, kit: Kit) -> None:
            super().__init__(kit, ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))

    return ray.remote(OnRay)
