"""Ray's actors: a slot has one on each of its nodes, and each of them a rank server."""

import contextlib
import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from faultline.fleet.cluster import Node
from faultline.fleet.slot import Kit, Post
from faultline.runs.driver import Slot, Work


@dataclass
class Actor:
    """A slot, the actors that it is on its nodes, of which the first runs cells, and the cell that runs, if any."""

    slot: Slot
    nodes: Sequence[Node]
    gpus: int  # on each of them
    handles: Sequence[Any]
    group: Any  # Ray's placement group, where there are several
    since: float
    greetings: int = 0  # that are still to come
    work: Work | None = None
    has: set[str] = field(default_factory=set)  # names of the references that it was given or made

    @property
    def first(self) -> Any:
        return self.handles[0]


def started(ray: ModuleType, kit: Any, slot: Slot, nodes: Sequence[Node], gpus: int) -> Actor:
    """Start an actor on each node of a slot, once all of these have room; `kit` is Ray's reference to a `Kit`."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

    takes = {"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}
    group, places = None, [NodeAffinitySchedulingStrategy(node_id=nodes[0].id, soft=False)]
    if len(nodes) > 1:
        chosen = [{"ray.io/node-id": node.id} for node in nodes]
        bundles = [takes] * len(nodes)
        group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD", bundle_label_selector=chosen)
        places = [PlacementGroupSchedulingStrategy(group, number) for number in range(len(nodes))]
    options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
    options["enable_task_events"] = False  # of each cell, for a dashboard that nobody has
    handles = [
        posts(ray).options(**options, scheduling_strategy=at).remote(kit, node.name)
        for node, at in zip(nodes, places, strict=True)
    ]
    return Actor(slot, nodes, gpus, handles, group, time.monotonic(), len(nodes))


def end(ray: ModuleType, actor: Actor) -> None:
    """End what a slot is on its nodes, whatever it does."""
    for handle in actor.handles:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(handle)
    if actor.group:
        ray.util.remove_placement_group(actor.group)


@functools.cache
def posts(ray: ModuleType) -> Any:
    """The class of actors."""

    class OnRay(Post):
        def __init__(self, kit: Kit, name: str) -> None:
            given = ray.get_runtime_context().get_accelerator_ids().get("GPU", ())
            super().__init__(kit, name, given, ray.util.get_node_ip_address())

    return ray.remote(OnRay)
