"""A cluster under fire: random cells on Ray nodes of this machine while all that they need is killed at random."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from faultline.base import machine
from faultline.base.console import write_line
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.packages import TODAY
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import selection
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.fleet import cluster
from faultline.fleet.rays import Rays
from faultline.ranks import start
from faultline.runs import measurement, scratch, storage
from faultline.runs.driver import Batch
from faultline.runs.results import Result
from faultline.stacks import environments
from faultline.stacks.environments import Environment

NODES = 3  # of the cluster, one slot each
RATE = 0.05  # of the cells are followed by a kill
KINDS = ("node", "actor", "rank server", "rank")
ENDS_WITHIN = 30.0  # seconds in which the last processes of a cluster may end
STORE = 80 << 20  # bytes of each node's object store, of which Ray wants 75 MiB at least


NAMES = {
    "lost": "cells lost",
    "doubled": "cells doubled",
    "blamed": "cells blamed for a kill",
    "different": "cells that did something else than here",
    "left": "left behind",
}


@dataclass(frozen=True)
class Soak:
    """What is wrong after a soak: cells that have no result or two, or another one than here, and what is left."""

    lost: Sequence[str]
    doubled: Sequence[str]
    blamed: Sequence[str]
    different: Sequence[str]
    left: Sequence[str]


def run(cells: int, seed: int) -> int:
    """Run random cells on a cluster of this machine with kills of every kind; exit code 1 if anything is wrong.

    A cell may be drawn several times. It is held against a run on this machine's workers without kills, of which what
    was measured before is not measured again.
    """
    choose = random.Random(seed)
    drawn = choose.choices(selection.select(failures(), Selection()), k=cells)
    environment = environments.chosen(TODAY, "")
    here = {entry.cell: entry for entry in _here([*dict.fromkeys(drawn)], environment)}
    with fires(choose) as fire:
        seen: list[Result] = []
        asked, ids = {"cells": cells, "seed": seed}, tuple(cell.id for cell in drawn)
        folder = storage.new_run(kind="soak", request=asked, cells=ids)

        def after(entry: Result) -> None:
            seen.append(entry)
            if choose.random() < RATE:
                fire.kill(choose.choice(KINDS))

        measurement.measure([Batch(drawn, environment, folder)], NODES, Rays(fire.address), on_result=after)
        folder.describe(finished=True)
    soak = judged(drawn, seen, here, fire.remains)
    _show(soak, cells, fire.kills)
    print(f"results: {folder.shown}/cells.jsonl")
    return EXIT_UNEXPECTED if any(vars(soak).values()) else EXIT_AS_EXPECTED


def _here(cells: Sequence[Cell], environment: Environment) -> list[Result]:
    """What cells do on this machine's workers."""
    folder = storage.new_run(kind="soak-here", cells=tuple(cell.id for cell in cells))
    batch = measurement.prepare(Batch(cells, environment, folder), expected=True)
    measurement.measure([batch], machine.cores())
    folder.describe(finished=True)
    return folder.results()


def judged(drawn: Sequence[Cell], seen: Sequence[Result], here: Mapping[Cell, Result], left: Sequence[str]) -> Soak:
    """What is wrong with the results of the cells that were drawn, held against those that they have here."""
    wanted, got = Counter(drawn), Counter(entry.cell for entry in seen)
    other = [entry for entry in seen if entry.cell not in here or differs(entry, here[entry.cell])]
    blamed = {entry.cell.id: f"{entry.cell.id}: {entry.detail}" for entry in other if of_kill(entry)}
    return Soak(
        [cell.id for cell in (wanted - got).elements()],
        [cell.id for cell in (got - wanted).elements()],
        [*blamed.values()],
        [f"{entry.cell.id}: {' '.join(entry.did)}" for entry in other if entry.cell.id not in blamed],
        left,
    )


def differs(entry: Result, other: Result) -> bool:
    """Whether two results of a cell do: not if both are expected, as where either of two ranks may be the first."""
    return entry.did != other.did and not entry.verdict == other.verdict == "expected"


def of_kill(entry: Result) -> bool:
    """Whether a result is what becomes of a cell that is blamed for a kill."""
    return entry.outcome == Outcome.INVALID or any(rank.exit == -signal.SIGKILL for rank in entry.ranks)


class Fire:
    """A cluster on this machine, and what kills its parts. Everything of it works in one folder."""

    def __init__(self, folder: Path, choose: random.Random) -> None:
        from ray.cluster_utils import Cluster

        self.folder, self.choose = folder, choose
        self.kills: Counter[str] = Counter()
        self.remains: list[str] = []  # what is still there once it is closed
        self._ports, self._memory = _ports(), _memory()
        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE, "temp_dir": f"{folder}/ray"}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._nodes = [self._add() for _ in range(NODES)]
        self._ray = cluster.connect(self.address)

    def _add(self) -> Any:
        return self._cluster.add_node(num_cpus=1, object_store_memory=STORE)

    def kill(self, kind: str) -> None:
        """Kill a node, for which another one comes, or a process of some kind; none may be there at the moment."""
        self.kills[kind] += 1
        if kind == "node":
            node = self._nodes.pop(self.choose.randrange(len(self._nodes)))
            self._cluster.remove_node(node, allow_graceful=False)
            self._nodes.append(self._add())
        elif there := [process for process in scratch.processes(self.folder) if is_of(kind, process)]:
            with contextlib.suppress(psutil.Error):
                self.choose.choice(sorted(there, key=lambda process: process.pid)).kill()
        else:
            self.kills[kind] -= 1

    def close(self) -> None:
        self._ray.shutdown()
        self._cluster.shutdown()
        cluster.connect.cache_clear()
        end = time.monotonic() + ENDS_WITHIN
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.5)
        self.remains = left

    def _left(self) -> list[str]:
        """What is still there of it: processes, folders of rank servers, shared memory, ports."""
        processes = [f"process {each.pid} {each.name()}" for each in scratch.processes(self.folder)]
        folders = [f"folder {path.name}" for path in self.folder.glob("faultline-*")]
        memory = [f"shared memory {name}" for name in sorted(_memory() - self._memory)]
        return [*processes, *folders, *memory, *(f"port {port}" for port in sorted(_ports() - self._ports))]


def is_of(kind: str, process: psutil.Process) -> bool:
    """Whether a process is an actor, a rank server, or a rank, which is a server's child and has its command."""
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        if kind == "actor":
            return any("ray::OnRay" in word for word in command)
        parent = process.parent()
        rank = parent is not None and start.__file__ in parent.cmdline()
        return start.__file__ in command and rank == (kind == "rank")
    return False


@contextlib.contextmanager
def fires(choose: random.Random) -> Iterator[Fire]:
    """A cluster for a soak. This process works in its folder meanwhile, whose name is short: it has sockets."""
    for name, value in cluster.SETTINGS.items():
        os.environ.setdefault(name, value)
    folder, before = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp")), os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    try:
        fire = Fire(folder, choose)
        try:
            yield fire
        finally:
            fire.close()
    finally:
        tempfile.tempdir = None
        os.environ.pop("TMPDIR")
        if before:
            os.environ["TMPDIR"] = before
        shutil.rmtree(folder, ignore_errors=True)


def _memory() -> set[str]:
    return {*os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()


def _ports() -> set[int]:
    """Ports at which this process or a descendant listens."""
    me, ports = psutil.Process(), set()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            ports |= {at.laddr.port for at in process.net_connections() if at.status == psutil.CONN_LISTEN}
    return ports


def _show(soak: Soak, cells: int, kills: Mapping[str, int]) -> None:
    console = Console()
    table = Table("what", "number", title=f"{count(cells, 'cell')} on {NODES} nodes", title_justify="left")
    for kind in KINDS:
        table.add_row(f"{kind}s killed", str(kills[kind]))
    for name, wrong in vars(soak).items():
        table.add_row(NAMES[name], str(len(wrong)))
    console.print(table)
    for name, wrong in vars(soak).items():
        for each in wrong:
            write_line(console, f"{NAMES[name]}: {each}")
