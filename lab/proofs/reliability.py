"""Reliability that anyone can measure: the same matrix twice, and a run whose ranks are killed at random."""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from rich.console import Console

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.cells import selection
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.ranks import start
from faultline.runs import campaigns, estimates, measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.engines import check_cells
from faultline.runs.results import Result


def repeat(cells: Sequence[Cell], workers: int) -> int:
    """Run cells twice, the second time in reverse order; exit code 1 if any outcome or signature differs.

    Each time has a results folder of its own, which is not the newest run of all other commands.
    """
    check_cells(cells)
    runs: list[dict[str, Did]] = []
    campaigns.note(estimates.estimate(cells, workers, 2))
    for order in (cells, [*reversed(cells)]):
        folder = storage.new_run(kind="repeat", cells=tuple(cell.id for cell in order))
        measurement.measure([Batch(order, folder=folder)], workers)
        folder.describe(finished=True)
        runs.append({entry.cell.id: entry.did for entry in folder.results()})
        print(f"results: {folder.shown}/cells.jsonl")
    first, second = runs
    different = [name for name in first if first[name] != second.get(name)]
    for name in different:
        print(f"{name}: {' '.join(first[name])} / {' '.join(second.get(name, ('nothing',)))}")
    print(f"{len(first)} cells twice: {len(different)} with another outcome the second time")
    return EXIT_UNEXPECTED if different else EXIT_AS_EXPECTED


def chaos(count: int, rate: float, seed: int, workers: int) -> int:
    """Run random cells while a share of the ranks is killed; exit code 1 if anything is lost or left.

    A cell whose ranks were left alone must do what is expected of it; one that
    lost a rank must end as `crashes`, unless it had already reported, or as
    `invalid` where the rank had not come so far as to show what it was. The results
    folder is not the newest run of all other commands, and none learns from it.
    """
    choose = random.Random(seed)
    cells = selection.select(failures(), Selection())
    cells = choose.sample(cells, min(count, len(cells)))
    before = leftovers()
    asked, ids = {"cells": count, "rate": rate, "seed": seed}, tuple(cell.id for cell in cells)
    folder = storage.new_run(kind="chaos", request=asked, cells=ids)
    with Killer(rate, choose) as killer:
        measurement.measure([Batch(cells, folder=folder)], workers)
    folder.describe(finished=True)
    results = folder.results()
    lost = {cell.id for cell in cells} - {entry.cell.id for entry in results}
    crashed = [entry for entry in results if killed(entry)]
    wrong = [entry for entry in results if entry.verdict != "expected" and not killed(entry)]
    left = {kind: sorted(names - before[kind]) for kind, names in leftovers().items() if names - before[kind]}
    console = Console()
    console.print(f"{len(cells)} cells, {killer.ranks} ranks, {killer.kills} killed at random moments", highlight=False)
    console.print(f"{len(results)} results, {len(lost)} lost; {len(crashed)} crashed by a kill", highlight=False)
    console.print(f"{len(wrong)} others not as expected: {[entry.cell.id for entry in wrong][:5]}", highlight=False)
    console.print(f"left behind: {left or 'nothing'}", highlight=False)
    print(f"results: {folder.shown}/cells.jsonl")
    return EXIT_UNEXPECTED if lost or wrong or left else EXIT_AS_EXPECTED


def killed(entry: Result) -> bool:
    """Whether a result says that SIGKILL ended a rank; one that had shown nothing yet makes its cell invalid."""
    return entry.outcome in ("crashes", "invalid") and any(rank.exit == -9 for rank in entry.ranks)


def leftovers() -> dict[str, set[str]]:
    """What a run could leave behind: processes, temporary folders, shared memory, listening ports.

    A process is a run's as a child of this one or, where its parents are gone, by
    the folder in its environment; one that has neither can't be distinguished from others.
    A port is open only as long as a process of the run, or this one, listens on it.
    """
    time.sleep(0.2)
    folder = f"{tempfile.gettempdir()}/faultline-"
    me = psutil.Process()
    family = {me, *me.children(recursive=True)}
    processes, ports = set(), set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # ended meanwhile, or another user's
            if process in family or process.environ().get("TMPDIR", "").startswith(folder):
                processes.add(f"{process.pid} {process.name()}")
                ports |= {str(at.laddr.port) for at in process.net_connections() if at.status == psutil.CONN_LISTEN}
    return {
        "processes": processes,
        "folders": {path.name for path in Path(tempfile.gettempdir()).glob("faultline-*")},
        "shared memory": set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set(),
        "ports": ports,
    }


class Killer:
    """Kills each rank that this process's servers start with a probability, at a random moment of its life."""

    def __init__(self, rate: float, choose: random.Random) -> None:
        self.rate, self.choose = rate, choose
        self.ranks = self.kills = 0
        self._seen: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._hunt)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _hunt(self) -> None:
        due: list[tuple[float, psutil.Process]] = []
        me = psutil.Process()
        while not self._stop.wait(0.01):
            for server in me.children():
                for rank in _children(server):
                    if rank.pid not in self._seen:
                        self._seen.add(rank.pid)
                        self.ranks += 1
                        if self.choose.random() < self.rate:
                            due.append((time.monotonic() + self.choose.random() * 0.5, rank))
            for at, rank in list(due):
                if at <= time.monotonic():
                    due.remove((at, rank))
                    try:
                        rank.kill()  # psutil makes sure that the pid was not reused
                        self.kills += 1
                    except psutil.NoSuchProcess:
                        pass


def _children(server: psutil.Process) -> list[psutil.Process]:
    try:
        return server.children() if start.__file__ in server.cmdline() else []
    except psutil.NoSuchProcess:
        return []
