"""A Ray cluster on this machine: a head without room, and the nodes that a test adds."""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil
import pytest

try:
    from ray.cluster_utils import Cluster
except ImportError:
    raise pytest.UsageError("Ray is not here: make fleet, and .fleet/bin/python -m pytest tests/fleet") from None

from faultline.fleet import cluster as fleet_cluster

STORE = 80 << 20


@pytest.fixture(scope="session")
def head(tmp_path_factory):
    """The head of a cluster, to which this process is connected; nothing of it is left at the end."""
    for name, value in fleet_cluster.SETTINGS.items():
        os.environ.setdefault(name, value)
    folder = tempfile.mkdtemp(prefix="fleet-", dir="/tmp")  # short: it has sockets
    os.environ["TMPDIR"] = tempfile.tempdir = folder  # of the nodes too: others may use the usual one
    before = {process.pid for process in psutil.process_iter()}
    memory = shared_memory()
    has = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE, "temp_dir": f"{folder}/ray"}
    head = Cluster(initialize_head=True, head_node_args=has)
    ray = fleet_cluster.connect(head.address)
    yield head
    ray.shutdown()
    head.shutdown()
    fleet_cluster.connect.cache_clear()
    left = [process for process in psutil.process_iter() if process.pid not in before and of_ray(process)]
    assert not left, "processes of Ray outlive the cluster"
    assert not shared_memory() - memory, "shared memory outlives the cluster"
    shutil.rmtree(folder)


@pytest.fixture
def nodes(head):
    """A function that adds a node of one processor; those that are left are removed at the end of the test."""
    made = []

    def add(**has):
        made.append(head.add_node(**{"num_cpus": 1, "object_store_memory": STORE, **has}))
        return made[-1]

    yield add
    for node in made:
        with contextlib.suppress(Exception):
            head.remove_node(node)


@pytest.fixture
def nothing_is_left(head):
    """Breaks when a folder of a rank server, its memory, or what runs in one, outlives a test."""
    memory = shared_memory()
    yield
    for _ in range(600):  # a server that is busy with imports hears of the end after them
        left = [*Path(tempfile.gettempdir()).glob("faultline-*"), *of_cells(), *(shared_memory() - memory)]
        if not left:
            return
        time.sleep(0.1)
    raise AssertionError(f"left behind: {left}")


def of_cells():
    """The processes that rank servers of these tests have left."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(f"{tempfile.gettempdir()}/faultline-"):
                yield process


def shared_memory():
    return {*os.listdir("/dev/shm")}


def of_ray(process):
    with contextlib.suppress(psutil.Error):
        return any("ray" in Path(word).name for word in process.cmdline()[:3])
    return False
