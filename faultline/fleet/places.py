"""Where the next slot of a cluster starts, and for which batch of a run: nodes keep their stack."""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.fleet.actors import Actor
from faultline.fleet.cluster import NOTHING, Held, Node
from faultline.runs.driver import Schedule

NEAR = 10  # times that a batch counts for more on a node that has its stack: another one is an environment to make


@dataclass(frozen=True)
class Room:
    """What is free on a node: slots, and GPUs."""

    node: Node
    slots: int
    gpus: int

    def fits(self, gpus: int) -> bool:
        """Whether there is a slot with so many GPUs."""
        return self.slots > 0 and self.gpus >= gpus

    def without(self, gpus: int) -> "Room":
        """What is left beside such a slot."""
        return replace(self, slots=self.slots - 1, gpus=self.gpus - gpus)


def held(actors: Iterable[Actor]) -> dict[str, Held]:
    """What actors have of each node, by its id."""
    by_node: dict[str, Held] = {}
    for actor in actors:
        for node in actor.nodes:
            before = by_node.get(node.id, NOTHING)
            by_node[node.id] = Held(before.slots + 1, before.gpus + actor.gpus)
    return by_node


def free(nodes: Iterable[Node], actors: Iterable[Actor]) -> list[Room]:
    """What is free on nodes beside actors."""
    has = held(actors)
    taken = {node: has.get(node.id, NOTHING) for node in nodes}
    return [Room(node, node.slots - of.slots, node.gpus - of.gpus) for node, of in taken.items()]


@dataclass(frozen=True)
class Place:
    """Where a slot goes: the number of its batch, and its nodes."""

    batch: int
    nodes: tuple[Node, ...]


def best(
    rooms: Collection[Room],
    needs: Sequence[Schedule],
    spread: int,
    stacks: Mapping[str, Container[int]],
    refused: Container[tuple[str, int]] = (),
) -> Place | None:
    """The place of the next slot, whose ranks are spread over so many nodes; None if no batch can have one.

    A batch that has none yet comes first, the one that wants most GPUs before others: later, no node may have that many
    at a time. Then what counts is how many cells wait for each slot. `stacks` are the batches whose stack a node has;
    `refused` are nodes and batches that don't go together.
    """
    choices = []
    for number, need in enumerate(needs):
        gpus = -(-need.gpus // spread)
        fitting = [room for room in rooms if room.fits(gpus) and (room.node.id, number) not in refused]
        if not need.waiting or len(fitting) < spread:
            continue
        fitting.sort(key=lambda room: room.slots, reverse=True)
        groups = [fitting[:spread]] if spread > 1 else [[room] for room in fitting]
        for group in groups:
            near = all(number in stacks.get(room.node.id, ()) for room in group)
            worth = need.waiting / (need.slots + 1) * (NEAR if near else 1)
            first = 0 if need.slots else 1 + need.gpus
            choices.append(((first, worth, group[0].slots), Place(number, tuple(room.node for room in group))))
    return max(choices, key=lambda choice: choice[0])[1] if choices else None
