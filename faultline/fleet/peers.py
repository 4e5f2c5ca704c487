"""The other nodes of a cell whose ranks are on several: what the first one calls, by Ray."""

import contextlib
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import psutil

from faultline.base.errors import FaultlineError, ServerDied
from faultline.base.text import cut, one_line
from faultline.ranks.job import Job
from faultline.runs.nodes import Begun, Finished, Seen

PATIENCE = 300.0  # seconds within which a node answers, that starts its rank server at most
CONFIGURED = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")  # by which clusters say what their nodes meet over


class NodeLost(FaultlineError):
    """A node of a cell is gone, or can't be reached, which says nothing of the cell."""


@dataclass(frozen=True)
class Peer:
    """A node beside the one that calls, as an actor there; `nodes.Node` says what the methods do.

    All but `abort` raise NodeLost where the actor is gone, and what its rank server raises.
    """

    ray: ModuleType
    name: str
    actor: Any

    def begin(self, job: Job) -> Begun:
        begun: Begun = self._call("begin", job)
        return begun

    def look(self, timeout: float, failed: bool) -> Seen:
        seen: Seen = self._call("look", timeout, failed)
        return seen

    def finish(self, hung: bool) -> Finished:
        finished: Finished = self._call("finish", hung)
        return finished

    def abort(self, leaving: bool) -> None:
        with contextlib.suppress(NodeLost, ServerDied):
            self._call("abort", leaving)

    def sees(self, folder: str) -> bool:
        """Whether a folder of the first node is there too."""
        return bool(self._call("sees", folder))

    def _call(self, method: str, *given: object) -> Any:
        try:
            return self.ray.get(getattr(self.actor, method).remote(*given), timeout=PATIENCE)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            why = cut(one_line(str(error)), 200)
            raise NodeLost(f"node {self.name}: {type(error).__name__} {why}") from None


def address(of_node: str) -> str:
    """Where ranks on this node are met: at the interface that its environment names, or else at the node's address."""
    for variable in CONFIGURED:
        for each in psutil.net_if_addrs().get(os.environ.get(variable, ""), ()):
            if each.family.name == "AF_INET":
                return each.address
    return of_node
