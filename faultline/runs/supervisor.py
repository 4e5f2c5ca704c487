"""The supervisor's side of the rank server: send a cell, watch its ranks, collect what became of each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from faultline.base.errors import NeverReady, ServerDied
from faultline.base.paths import ROOT
from faultline.base.traces import is_victim
from faultline.ranks import settings
from faultline.ranks.report import Report
from faultline.runs.hangs import TICK, Progress, text

DEADLINE = 120.0  # seconds that a cell may take at the very most
START_LOOKS = 480  # looks in a row that find a server asleep that isn't ready yet
START_WORK = 120.0  # seconds of processor time that it may take to get ready
SETTLE_TICK = 0.05  # seconds between two looks once a rank has failed
SETTLED = 6  # looks in a row that find its peers asleep: they have no more to say
PATIENCE = 0.8  # seconds for peers that don't fall asleep, as in NCCL: a failed cell is over within a second

# What launchers tell those that they start. A shell in a job of theirs has it too, and libraries act on it:
# a cell would find itself one of many ranks, or under an engine that nobody asked for.
OF_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "CROSS_", "MASTER_", "TORCHELASTIC_"),  # torchrun and alike
    *("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "DEEPSPEED_", "DS_"),  # accelerate, deepspeed
    *("SLURM_", "PMI_", "PMIX_", "OMPI_", "MPI_", "MV2_"),  # clusters
)


def inherited(python: str) -> dict[str, str]:
    """The environment of this process, for a server of an interpreter, without what a launcher says of it.

    Another stack's environment is this suite's own: it may keep its bytecode, which saves each start 15 seconds.
    """
    unwanted = OF_LAUNCHERS if python == sys.executable else (*OF_LAUNCHERS, "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: with a report, by an exit code (negative: a signal), or killed while it hung.

    `shown` is the evidence that it left before it began to train; `at` is when the exit was seen, on the clock of a
    report's error: so the first of several causes can be told.
    """

    report: Report | None = None
    exit: int | None = None
    stack: str = ""
    log: str = ""
    shown: dict[str, Any] = field(default_factory=dict)
    at: float = 0.0

    @property
    def evidence(self) -> dict[str, Any]:
        return self.report.evidence if self.report else self.shown


@dataclass(frozen=True)
class Ended:
    """What became of a cell's ranks; `hang` says what was seen when they made no progress."""

    ranks: list[RankEnd]
    hang: str = ""
    seconds: float = 0.0
    pids: list[int] = field(default_factory=list)


class RankServer:
    """One rank server and the folder that its cells work in. Use it as a context manager."""

    def __init__(self, python: str, deadline: float = DEADLINE, device: str = "cpu") -> None:
        self.python = python
        self.deadline = deadline
        self.device = device
        self.folder = Path(tempfile.mkdtemp(prefix="faultline-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._buffer = b""
        self.killed = False
        self.greeting: dict[str, Any] = {}

    def __enter__(self) -> RankServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server unless it runs; raises NeverReady with its last words if it can't."""
        if self._process and self._process.poll() is None:
            return
        self._stop()
        with self._starting, open(self.folder / "server.log", "wb") as log:
            if self.killed:
                raise ServerDied("the rank server was killed")
            self._process = subprocess.Popen(
                [self.python, "-m", "faultline.ranks.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**inherited(self.python), **settings.environment(self.device), "TMPDIR": str(self.folder)},
                start_new_session=True,
            )
        self._buffer = b""
        try:
            greeting = self._greeting()
        except BaseException as error:
            self._process.kill()  # busy with imports, it would not hear of the end
            self._stop()
            if type(error) is ServerDied and not self.killed:
                raise NeverReady(str(error)) from None
            raise
        self.greeting = greeting

    def run(self, job: dict[str, Any], world_size: int) -> Ended:
        """Run one cell's ranks to their end; nothing of the cell is left when this returns."""
        self.start()
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="cell-"))
        try:
            return self._watch({**job, "folder": str(folder)}, world_size, folder)
        except BaseException:
            self._stop()  # a cell that was not ended in order takes its server with it
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, job: dict[str, Any], world_size: int, folder: Path) -> Ended:
        started = time.monotonic()
        self._send({"world_size": world_size, "job": job})
        first = self._event(30.0)
        if first is None or "pids" not in first:
            raise ServerDied("the rank server did not answer")
        pids: list[int] = first["pids"]
        progress = Progress(pids, folder)
        reports: dict[int, Report] = {}
        exits: dict[int, tuple[int, float]] = {}
        hang = ""
        failed_at = 0.0
        while len(reports.keys() | exits.keys()) < world_size:
            event = self._event(SETTLE_TICK if failed_at else TICK)
            now = time.monotonic()
            if event is not None:
                if _collect(event, reports, exits) and not failed_at:
                    failed_at, progress.sleeps = now, 0
                continue
            running = [rank for rank in range(world_size) if rank not in reports and rank not in exits]
            if failed_at:
                if progress.asleep(running) >= SETTLED or now - failed_at > PATIENCE:
                    break
                continue
            hang = progress.stalled(running)
            if not hang and now - started > self.deadline:
                hang = f"still running after {self.deadline:.0f} s"
            if hang:
                progress.stacks(wake=True)
                break
        seconds = time.monotonic() - started
        self._send({"kill": True})
        while (event := self._event(30.0)) is not None and "done" not in event:
            _collect(event, reports, exits)
        if event is None:
            raise ServerDied("the rank server did not end its ranks")
        for rank, report in reports.items():
            if report.error:  # says what became of the rank, whatever ended the process later
                exits.pop(rank, None)
        ends = []
        for rank in range(world_size):
            code, at = exits.get(rank, (None, 0.0))
            stack, log = text(folder / f"rank{rank}.stack"), text(folder / f"rank{rank}.log")[-20000:]
            shown = json.loads(text(folder / f"rank{rank}.evidence") or "{}")
            ends.append(RankEnd(reports.get(rank), code, stack, log, shown, at))
        return Ended(ends, hang, seconds, pids)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process and self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ServerDied(self._last_words()) from None

    def _greeting(self) -> dict[str, Any]:
        """What the server says once it is ready, however long a busy machine makes it work for that."""
        assert self._process
        progress = Progress([self._process.pid], self.folder)
        while (greeting := self._event(TICK)) is None:
            if progress.asleep([0]) >= START_LOOKS:
                raise NeverReady(f"the rank server slept for {START_LOOKS * TICK:.0f} s before it was ready")
            if progress.used.get(0, 0.0) > START_WORK:
                raise NeverReady(f"the rank server worked for {START_WORK:.0f} s and was not ready")
        return greeting

    def _event(self, timeout: float) -> dict[str, Any] | None:
        """The next event, or None when none came in time; raises ServerDied at the end of the stream."""
        assert self._process and self._process.stdout
        end = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            chunk = os.read(self._process.stdout.fileno(), 1 << 20)
            if not chunk:
                raise ServerDied(self._last_words())
            self._buffer += chunk
        line, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(line)

    def _last_words(self) -> str:
        lines = text(self.folder / "server.log").strip().splitlines()
        return f"the rank server ended: {lines[-1] if lines else 'without a word'}"

    def _stop(self) -> None:
        if not self._process:
            return
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(ServerDied):
            self._send({"end": True})  # unlike a supervisor that is gone: the folder stays
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if self._process.wait():
            self._sweep()
        self._process.stdout.close()
        self._process = None

    def _sweep(self) -> None:
        """Kill what is left of a server that could not clear up: its ranks die with it, what they started does not."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR", "").startswith(str(self.folder)):
                    process.kill()
                    found.append(process)
            except psutil.Error:
                continue
        psutil.wait_procs(found, timeout=5)

    def kill(self) -> None:
        """From any thread: end the server at once and for good. Where a cell was run on it, ServerDied is raised."""
        with self._starting:
            self.killed = True
            if self._process:
                self._process.kill()

    def close(self) -> None:
        """End the server, its ranks and its folder."""
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _collect(event: dict[str, Any], reports: dict[int, Report], exits: dict[int, tuple[int, float]]) -> bool:
    """Keep what an event says of a rank; whether it tells the cause of a failure, not just that a peer is gone."""
    if "exit" in event:
        exits[event["rank"]] = event["exit"], event["at"]
        return True
    report = reports[event["rank"]] = msgspec.convert(event["report"], Report)
    return report.error is not None and not is_victim(report.error.message)
