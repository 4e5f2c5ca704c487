"""Ranks as two nodes, for strategies that shard within a node and replicate between nodes."""

from collections.abc import Iterable
from typing import Any

from faultline.base.errors import Impossible
from faultline.strategies import Evidence, Setup

NODES = 2
RANKS = 4  # the fewest of which each node shards, and which the nodes have copies of


def mesh(setup: Setup) -> Any:
    """A device mesh [node, rank in the node]; raises Impossible where nodes of several ranks can't be made."""
    from torch.distributed.device_mesh import init_device_mesh

    if setup.world_size < RANKS or setup.world_size % NODES:
        raise Impossible(f"{setup.world_size} ranks are not {NODES} nodes of several ranks")
    shape = (NODES, setup.world_size // NODES)
    return init_device_mesh(setup.device.type, shape, mesh_dim_names=("replicate", "shard"))


def ranks_of(groups: Iterable[Any]) -> list[list[int]]:
    """The ranks of each process group, those that are alike once."""
    from torch.distributed import get_process_group_ranks

    return [list(ranks) for ranks in dict.fromkeys(tuple(get_process_group_ranks(group)) for group in groups)]


def doubts(evidence: Evidence) -> list[str]:
    """What contradicts that all of a model is sharded among the ranks of one node, with a copy on each node."""
    shards, replicas, size = evidence["shard_groups"], evidence["replica_groups"], evidence["world_size"] // NODES
    return not_a_node(shards, size, "sharded") + (
        []
        if len(replicas) == 1 and _one_of_each_node(replicas[0], size)
        else [f"copies are held by ranks {_text_of(replicas)}, not by one of each node"]
    )


def not_a_node(groups: list[list[int]], size: int, done: str) -> list[str]:
    """What contradicts that something is done among the ranks of one node of this size."""
    node = len(groups) == 1 and groups[0] == [*range(groups[0][0], groups[0][0] + size)] and groups[0][0] % size == 0
    return [] if node else [f"weights are {done} among ranks {_text_of(groups)}, not among the {size} of a node"]


def not_a_share(held: int, whole: int, parts: int) -> list[str]:
    """What contradicts that a rank holds one of so many parts of the weights; parts of a model are not quite equal."""
    return [] if 2 * whole < 3 * held * parts < 5 * whole else [f"a rank holds {held} of {whole} bytes, not 1/{parts}"]


def secondary_doubts(size: int, evidence: Evidence) -> list[str]:
    """What contradicts that each node holds a secondary partition, and that every step gathers from it."""
    held, groups = evidence.get("secondary_held", 0), evidence.get("secondary_groups", [])
    if size == 1:
        return [f"a rank holds a secondary partition of {held} bytes"] if held else []
    if wrong := not_a_node(groups, size, "held a second time"):
        return wrong
    counts = [0, *evidence.get("used", ())]
    idle = [step for step in range(1, len(counts)) if counts[step] <= counts[step - 1]]
    return not_a_share(held, evidence["bytes_whole"], size) + [
        f"step {step} gathered nothing within the node" for step in idle
    ]


def _one_of_each_node(ranks: list[int], size: int) -> bool:
    return len({rank % size for rank in ranks}) == 1 and [rank // size for rank in ranks] == [*range(NODES)]


def _text_of(groups: list[list[int]]) -> str:
    return " or ".join(", ".join(map(str, group)) for group in groups) or "of no group"
