"""The actors of one run on a Ray cluster: started where there is room, given cells, replaced when they die."""

import contextlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import Any

from faultline.base.errors import FaultlineError, NeverReady, NoRoom, ServerDied
from faultline.base.text import cut, one_line
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import Cell, reference
from faultline.fleet import actors, cluster, places
from faultline.fleet.actors import Actor
from faultline.fleet.cluster import Node
from faultline.fleet.peers import NodeLost, Peer
from faultline.fleet.places import Place
from faultline.fleet.slot import Answer, Kit
from faultline.runs import cache
from faultline.runs.driver import Driver, Slot
from faultline.runs.engines import ranks
from faultline.runs.results import Result

LOOK = 0.2  # seconds between two looks at what actors have done
NODES = 1.0  # seconds between two looks for nodes that came or went
OVERDUE = 1200.0  # seconds after which a node that says nothing is given up: a cell or an environment has far fewer
NOBODY = 120.0  # seconds that a cluster may have no room for us
SOON = 5.0  # seconds of these after which the wait is announced
BELIEVED = 3  # times that what may be a node's doing is seen of a cell until it is the cell's; or of slots, the node's
GOODBYE = 10.0  # seconds in which actors may end their servers


class Fleet:
    """The actors of one run. Everything but `ended` belongs to the thread of `run`."""

    def __init__(self, ray: ModuleType, workers: int, driver: Driver, spread: int = 1) -> None:
        self.ray, self.workers, self.driver, self.spread = ray, workers, driver, spread
        self.ended = threading.Event()
        self.idle: list[Actor] = []
        self.busy: dict[Any, tuple[Actor, int]] = {}  # by Ray's reference to an answer: which of its nodes gives it
        # What was made for the cells of a batch that share a reference, as Ray's objects.
        self.references: dict[tuple[int, Cell], dict[str, Any]] = {}
        self.refused: dict[tuple[str, int], str] = {}  # nodes that can't run a batch, and why
        self.failed: Counter[tuple[str, int]] = Counter()  # slots in a row that died there before they were ready
        self.began: set[int] = set()  # the batches that had a slot that was ready
        self.stacks: dict[str, set[int]] = {}  # the batches that a node has run
        self.number = 0
        self.ranks = -(-max(ranks(batch.cells) for batch in driver.batches) // spread)
        self.kits = [ray.put(Kit(batch.stack, driver.device, batch.run, spread)) for batch in driver.batches]
        self.looked = self.seen = time.monotonic()
        self.waits = False  # for room, and has said so

    def run(self) -> None:
        """Until nothing is left: start actors, give them cells, take answers. Whatever goes wrong ends the run."""
        try:
            self.look()
            while self.driver.left and not self.ended.is_set():
                if self.give() or time.monotonic() - self.looked > NODES:
                    self.look()
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
        nodes = cluster.nodes(self.ray, self.driver.device, self.ranks, places.held(self.actors))
        alive = {node.id for node in nodes}
        # One that runs a cell may still answer, or ends by itself.
        for actor in [each for each in self.actors if not each.work]:
            if not alive.issuperset(node.id for node in actor.nodes):
                self.idle = [each for each in self.idle if each is not actor]
                self.lose(actor, "its node is gone")
        rooms = {room.node.id: room for room in places.free(nodes, self.actors)}
        while len(self.actors) < self.workers:
            place = places.best(rooms.values(), self.driver.schedules, self.spread, self.stacks, self.refused)
            if not place:
                break
            gpus = self.start(place)
            rooms |= {node.id: rooms[node.id].without(gpus) for node in place.nodes}
        if self.actors:
            self.seen, self.waits = self.looked, False
        self.give_up(alive)

    def give_up(self, alive: Collection[str]) -> None:
        """Say of batches that no node will run them. One that ran waits for another node, as all do without room."""
        for batch, need in enumerate(self.driver.schedules):
            why = {node: why for (node, number), why in self.refused.items() if number == batch}
            usable = [node for node in alive if node not in why]
            if need.waiting and why and len(usable) < self.spread and batch not in self.began:
                reasons = "; ".join(why.values())
                self.driver.refused(batch, NeverReady(f"no node can run these cells: {reasons}"))
        waited = self.looked - self.seen
        if waited > SOON and not self.waits and self.driver.left:
            self.waits = True
            print(f"waiting for room on the cluster, {NOBODY:.0f} s at most", file=sys.stderr, flush=True)
        if waited > NOBODY:
            reasons = "".join(f"; {why}" for why in dict.fromkeys(self.refused.values()))
            raise NoRoom(f"the cluster had no room for these cells for {NOBODY:.0f} s{reasons}")

    def start(self, place: Place) -> int:
        """Start a slot, which greets when its stack is there and its rank servers are up; its GPUs on each node."""
        gpus = -(-self.driver.schedules[place.batch].gpus // self.spread)
        self.number += 1
        slot = Slot(f"slot {self.number}", "+".join(node.id for node in place.nodes), place.batch)
        actor = actors.started(self.ray, self.kits[place.batch], slot, place.nodes, gpus)
        self.driver.opened(slot)
        for node in place.nodes:
            self.stacks.setdefault(node.id, set()).add(place.batch)
        for number, handle in enumerate(actor.handles):
            self.busy[handle.greet.remote()] = actor, number
        return gpus

    def give(self) -> bool:
        """Give idle actors cells, with the references that these need; whether one made room for another batch."""
        left = False
        for actor in [*self.idle]:
            work = self.driver.ready(actor.slot)
            leaves = not work and self.driver.spare(actor.slot)
            left |= leaves
            if leaves:
                self.idle.remove(actor)
                self.lose(actor, "its stack has no more cells")
            if not work:
                continue
            self.idle.remove(actor)
            made = self.references.get((actor.slot.batch, reference(work.cell)), {})
            missing = made.keys() - actor.has
            actor.has |= missing
            actor.work, actor.since = work, time.monotonic()
            self.busy[actor.first.run.remote(work.cell.id, *(made[name] for name in missing))] = actor, 0
        return left

    def hear(self) -> None:
        """Take what actors have answered within a moment."""
        if not self.busy:
            time.sleep(LOOK)
            return
        waiting = [*self.busy]
        there, _ = self.ray.wait(waiting, num_returns=len(waiting), timeout=0)
        if not there:
            there, _ = self.ray.wait(waiting, timeout=LOOK)
        for answer, answered in zip(there, self.fetched(there), strict=True):
            if answer in self.busy:  # else it is of a slot that another answer ended
                self.take(*self.busy.pop(answer), answered)

    def fetched(self, answers: Sequence[Any]) -> list[Any]:
        """What is behind answers: values, or the errors with which they ended."""
        with contextlib.suppress(self.ray.exceptions.RayError):
            return list(self.ray.get(answers))
        every = []
        for answer in answers:
            try:
                every.append(self.ray.get(answer))
            except self.ray.exceptions.RayError as error:
                every.append(error)
        return every

    def take(self, actor: Actor, number: int, answered: Any) -> None:
        """Take what an actor gives: that it is ready, a result, an error of the run, or nothing more."""
        node = actor.nodes[number]
        if isinstance(answered, self.ray.exceptions.RayTaskError):
            self.take_error(actor, node, answered.cause)
        elif isinstance(answered, self.ray.exceptions.RayError):
            why = f"{type(answered).__name__} {cut(one_line(str(answered)), 200)}"
            if actor.greetings:
                self.lose_before_ready(actor, node, why)
            else:
                self.lose(actor, f"node {node.name}: {why}")
        elif isinstance(answered, bytes):
            self.take_result(actor, Answer.unpacked(answered))
        elif answered and answered != cache.machinery():
            self.refuse(actor, node, "another version of Faultline is there")
        else:
            self.take_greeting(actor)

    def take_error(self, actor: Actor, node: Node, cause: BaseException) -> None:
        """Take what was raised there: of a node that lacks something, of one that fails, or of the run."""
        why = f"node {node.name}: {cut(one_line(str(cause)), 300)}"
        if isinstance(cause, NodeLost):
            self.lose(actor, str(cause))
        elif isinstance(cause, OSError) and actor.greetings > 0:
            self.lose_before_ready(actor, node, why)
        elif isinstance(cause, OSError | ServerDied) and actor.greetings <= 0:
            self.lose(actor, why)
        elif isinstance(cause, FaultlineError) and actor.greetings > 0:
            self.refuse(actor, node, str(cause))
        else:
            raise cause from None

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
            self.began.add(actor.slot.batch)
            for node in actor.nodes:
                self.failed.pop((node.id, actor.slot.batch), None)

    def take_result(self, actor: Actor, answered: Answer) -> None:
        work = actor.work
        assert work
        names = self.references.setdefault((actor.slot.batch, reference(work.cell)), {})
        for made in answered.made:
            actor.has.add(made.name)
            names.setdefault(made.name, self.ray.put(made))  # the actor's own object would go with it
        actor.work = None
        self.idle.append(actor)
        if doubtful(answered.result) and len(work.lost) < BELIEVED - 1:
            self.driver.lost(actor.slot, f"{answered.result.detail} (on {actor.nodes[0].name})")
            self.driver.opened(actor.slot)  # only the cell is lost
        else:
            self.driver.result(actor.slot, work, answered.result)

    def refuse(self, actor: Actor, node: Node, why: str) -> None:
        """Use a node no more for a batch whose cells it can't run."""
        self.end(actor)
        self.refused[node.id, actor.slot.batch] = f"node {node.name}: {why}"
        self.driver.lost(actor.slot, why)

    def lose_before_ready(self, actor: Actor, node: Node, why: str) -> None:
        """Give up a slot that never greeted; after some of them, the node too."""
        self.failed[node.id, actor.slot.batch] += 1
        if self.failed[node.id, actor.slot.batch] < BELIEVED:
            self.lose(actor, f"node {node.name}: {why}")
        else:
            self.refuse(actor, node, why)

    def lose(self, actor: Actor, why: str) -> None:
        """Give up a slot, and end it: an actor that can't be reached may still run its cell."""
        self.end(actor)
        self.driver.lost(actor.slot, why)

    def end(self, actor: Actor) -> None:
        """End what a slot is on its nodes; no answer of it is waited for."""
        self.busy = {answer: (of, number) for answer, (of, number) in self.busy.items() if of is not actor}
        actors.end(self.ray, actor)

    def end_overdue(self) -> None:
        """Give up slots that say nothing for longer than any cell takes, or than they need to be ready."""
        now = time.monotonic()
        for actor, number in {id(actor): (actor, number) for actor, number in self.busy.values()}.values():
            if now - actor.since > OVERDUE:
                if actor.greetings > 0:
                    self.lose_before_ready(actor, actor.nodes[number], f"not ready after {OVERDUE:.0f} s")
                else:
                    self.lose(actor, f"no word for {OVERDUE:.0f} s")

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


def doubtful(result: Result) -> bool:
    """Whether a result may be its node's doing: the rank server died, or SIGKILL ended a rank and isn't expected there.

    The kernel kills so for memory.
    """
    if result.verdict == "expected":
        return False
    return result.signature == Signature.SERVER or any(rank.exit == -signal.SIGKILL for rank in result.ranks)
