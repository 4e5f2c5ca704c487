"""The connection to a Ray cluster: one that is there, or a small one on this machine that ends with this process."""

import atexit
import contextlib
import functools
import importlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

from faultline.base import machine
from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.base.text import cut, one_line
from faultline.ranks.job import LOOPBACK
from faultline.runs import engines, scratch

STORE = 200 << 20  # bytes of Ray's object store on this machine: references have a few kB each
FOLDER = "/tmp"  # of a new cluster's folder, whose name must be short: it has sockets
# Ray reads these when it is imported, and its processes inherit them: Faultline bounds its ranks itself, brings no
# environment of `uv run` to other nodes, reports nothing to anybody, and needs no equal patch release of Python. A rank
# server clears up by itself when its actor is gone; killed with it, it could not. A node that is ended serves nobody
# who would need half a minute's notice.
SETTINGS = {
    "RAY_kill_child_processes_on_worker_exit": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}
# Of Ray's own, and what it reads: https://docs.ray.io/en/latest/ray-security/token-auth.html
TOKEN, MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"


@dataclass(frozen=True)
class Node:
    """A node of the cluster: its id, a name that a person knows it by, how many slots it takes, and its GPUs."""

    id: str
    name: str
    slots: int
    gpus: int = 0


@functools.cache
def connect(address: str) -> ModuleType:
    """Ray, connected to the cluster at an address, to the one that `ray start` began here, or to a new one; only once.

    Raises UsageError where Ray isn't installed, or nobody answers.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise UsageError(
            "Ray is not installed here: in a clone, `make fleet` makes .fleet, and .fleet/bin/faultline has it;"
            " else `pip install 'faultline[run,fleet]'`"
        ) from None
    options = {"namespace": "faultline", "log_to_driver": False, "logging_level": "error"}
    try:
        with contextlib.chdir(ROOT):  # Ray has its workers look for modules in the folder of who connects
            if there := address or os.environ.get("RAY_ADDRESS") or _started():
                ray.init(address=there, **options)
            else:
                _start(ray, options)
    except Exception as error:  # noqa: BLE001 - a start that is slow ends in a bare one
        where = f" at {address}" if address else ""
        asks = "" if os.environ.get(MODE) == "token" else f"; if it asks for a token, set {MODE}=token and {TOKEN}"
        raise UsageError(f"no Ray cluster answers{where}: {cut(one_line(str(error)), 300)}{asks}") from None
    atexit.register(ray.shutdown)
    return ray


def _started() -> str:
    """The address of the cluster that the last `ray start` on this machine began or joined, if something answers there.

    Ray's own "auto" takes any that runs here: another user's, or one that ends with the run that started it.
    """
    from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
    from ray._private.services import find_bootstrap_address

    address = find_bootstrap_address(None) or ""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError), socket.create_connection((host, int(port)), timeout=1):
        maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        return address
    return ""


def _start(ray: ModuleType, options: dict[str, Any]) -> None:
    """A cluster of this machine alone, which no other reaches, and whose files go with it.

    The folder's name is short, for it has sockets; Ray opens its own to everybody, so that is within one of ours.
    """
    folder = scratch.made("faultline-ray-", FOLDER)
    # Else Ray writes one into the home folder, and each cluster that is started later asks for it.
    os.environ.setdefault(TOKEN, secrets.token_hex(32))
    atexit.register(folder.close)
    services: Any = importlib.import_module("ray._private.services")
    replaced, services.resolve_ip_for_localhost = services.resolve_ip_for_localhost, str
    try:
        ray.init(
            address="local",
            num_cpus=machine.cores(),
            include_dashboard=False,
            object_store_memory=STORE,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(folder.path / "r"),
            **options,
        )
    except BaseException:
        ray.shutdown()
        scratch.end_processes(folder.path)  # by the variable that they have from here
        folder.close()
        raise
    finally:
        services.resolve_ip_for_localhost = replaced


@dataclass(frozen=True)
class Held:
    """What a run has of a node already: slots, and GPUs."""

    slots: int = 0
    gpus: int = 0


NOTHING = Held()


def nodes(ray: ModuleType, device: str, ranks: int, held: Mapping[str, Held] = MappingProxyType({})) -> list[Node]:
    """The nodes that are alive and have room, with as many slots of so many ranks as their processors and memory allow.

    What others use of a node doesn't count; what is `held` on nodes, by their ids, does.
    """
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    seen, takes = [], engines.memory(device, ranks)
    for node in ray.nodes():
        id_, has = node["NodeID"], node["Resources"]
        left, ours = free.get(id_, {}), held.get(id_, NOTHING)
        slots = min(int(has.get("CPU", 0)), int(left.get("CPU", 0)) + ours.slots, int(has.get("memory", 0) // takes))
        if node["Alive"] and slots:
            gpus = min(int(has.get("GPU", 0)), int(left.get("GPU", 0)) + ours.gpus)
            seen.append(Node(id_, f"{node['NodeManagerAddress']} ({id_[:8]})", slots, gpus))
    return seen
