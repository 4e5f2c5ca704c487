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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import msgspec
import psutil

from faultline.base.errors import NeverReady, ServerDied
from faultline.base.paths import ROOT
from faultline.base.traces import is_victim
from faultline.ranks import preload, start
from faultline.ranks.job import Job
from faultline.ranks.report import Message, Report
from faultline.runs.hangs import TICK, Progress, text
from faultline.strategies import Evidence

DEADLINE = 120.0  # seconds that a cell may take at the very most
START_LOOKS = 480  # looks in a row that find a server asleep that isn't ready yet
START_WORK = 120.0  # seconds of processor time that it may take to get ready
SETTLE_TICK = 0.05  # seconds between two looks once a rank has failed
SETTLED = 6  # looks in a row that find its peers asleep: they have no more to say
PATIENCE = 0.8  # seconds for peers that don't fall asleep, as in NCCL: a failed cell is over within a second

# What launchers set for those that they start. A shell in such a job has it too, and libraries act on it:
# a cell would find itself one of many ranks, or under an engine that nobody asked for.
OF_LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "CROSS_", "MASTER_", "TORCHELASTIC_"),  # torchrun and alike
    *("ACCELERATE_", "FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_", "DEEPSPEED_", "DS_"),  # accelerate, deepspeed
    *("RAY_", "GRPC_", "SLURM_", "PMI_", "PMIX_", "OMPI_", "MPI_", "MV2_"),  # clusters
)


def inherited(python: str) -> dict[str, str]:
    """The environment of this process, for a server of an interpreter, without what a launcher says of it.

    Another stack's environment belongs to this suite: it may keep its bytecode, which saves each start 15 seconds.
    """
    unwanted = OF_LAUNCHERS if python == sys.executable else (*OF_LAUNCHERS, "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: with a report, by an exit code (negative: a signal), or killed while it hung.

    `shown` is the evidence that it left before it began to train; `at` is when the exit was seen, on the clock of a
    report's error: so the first of several causes is known.
    """

    report: Report | None = None
    exit: int | None = None
    stack: str = ""
    log: str = ""
    shown: Evidence = field(default_factory=dict)
    at: float = 0.0

    @property
    def evidence(self) -> Evidence:
        return self.report.evidence if self.report else self.shown


@dataclass(frozen=True)
class Ended:
    """What became of a cell's ranks; `hang` says what was seen when they made no progress."""

    ranks: list[RankEnd]
    hang: str = ""
    seconds: float = 0.0
    pids: Sequence[int] = ()


class Watched:
    """A cell's ranks, as long as they run: what they reported, how they ended, and whether they hang.

    `failed_at` is when the first rank failed by itself, and not because a peer is gone.
    """

    def __init__(self, pids: Sequence[int], folder: Path, deadline: float) -> None:
        self.pids, self.folder, self.deadline = pids, folder, deadline
        self.progress = Progress(pids, folder)
        self.started = time.monotonic()
        self.reports: dict[int, Report] = {}
        self.exits: dict[int, Message] = {}
        self.hang = ""
        self.failed_at = 0.0

    @property
    def running(self) -> list[int]:
        return [rank for rank in range(len(self.pids)) if rank not in self.reports and rank not in self.exits]

    def on_message(self, message: Message) -> None:
        if message.report:
            self.on_report(message.rank, message.report)
        elif message.exit is not None:
            self.exits[message.rank] = message
            self.on_failure()

    def on_report(self, rank: int, report: Report) -> None:
        self.reports[rank] = report
        if report.error and not is_victim(report.error.message):
            self.on_failure()

    def on_failure(self) -> None:
        if not self.failed_at:
            self.failed_at, self.progress.sleeps = time.monotonic(), 0

    def on_silence(self) -> bool:
        """Look at the ranks, as none was heard of for a while: whether nothing more will come of them."""
        if self.failed_at:
            return self.progress.asleep(self.running) >= SETTLED or time.monotonic() - self.failed_at > PATIENCE
        self.hang = self.progress.stalled(self.running)
        if not self.hang and time.monotonic() - self.started > self.deadline:
            self.hang = f"still running after {self.deadline:.0f} s"
        if self.hang:
            self.progress.stacks(wake=True)
        return bool(self.hang)

    def end(self, rank: int) -> RankEnd:
        """How a rank ended; one that reported an error by that, whatever ended its process later."""
        report = self.reports.get(rank)
        left = Message() if report and report.error else self.exits.get(rank, Message())
        stack, log = text(self.folder / f"rank{rank}.stack"), text(self.folder / f"rank{rank}.log")[-20000:]
        shown = json.loads(text(self.folder / f"rank{rank}.evidence") or "{}")
        return RankEnd(report, left.exit, stack, log, shown, left.at)


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
        self.gpus: tuple[str, ...] = ()  # that the next cell has for itself
        self.versions: Mapping[str, str] = {}  # of its stack, once it is ready
        self._of_ranks = {"TMPDIR": str(self.folder), start.IN_RANKS: "1"}

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
                [self.python, "-P", start.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=inherited(self.python) | preload.environment(self.device) | self._of_ranks,
                start_new_session=True,
            )
        self._buffer = b""
        try:
            self.versions = self._ready().versions
        except BaseException as error:
            self._process.kill()  # busy with imports, it would not hear of the end
            self._stop()
            if type(error) is ServerDied and not self.killed:
                raise NeverReady(str(error)) from None
            raise

    def run(self, job: Job) -> Ended:
        """Run one cell's ranks to their end; nothing of the cell is left when this returns."""
        self.start()
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="cell-"))
        try:
            return self._watch(replace(job, folder=str(folder), gpus=self.gpus), folder)
        except BaseException as error:
            # A cell that was not ended in order takes its server with it. A supervisor that leaves may be killed soon.
            self._stop(leaving=isinstance(error, SystemExit))
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _watch(self, job: Job, folder: Path) -> Ended:
        self._send({"job": asdict(job)})
        started = self._message(30.0)
        if started is None or not started.pids:
            raise ServerDied("the rank server did not answer")
        cell = Watched(started.pids, folder, self.deadline)
        while cell.running:
            message = self._message(SETTLE_TICK if cell.failed_at else TICK)
            if message:
                cell.on_message(message)
            elif cell.on_silence():
                break
        seconds = time.monotonic() - cell.started
        self._send({})
        while (message := self._message(30.0)) and not message.done:
            cell.on_message(message)
        if message is None:
            raise ServerDied("the rank server did not end its ranks")
        return Ended([cell.end(rank) for rank in range(len(cell.pids))], cell.hang, seconds, cell.pids)

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process and self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ServerDied(self._last_words()) from None

    def _ready(self) -> Message:
        """What the server says once it is ready, however long a busy machine makes it work for that."""
        assert self._process
        progress = Progress([self._process.pid], self.folder)
        while (message := self._message(TICK)) is None:
            if progress.asleep([0]) >= START_LOOKS:
                raise NeverReady(f"the rank server slept for {START_LOOKS * TICK:.0f} s before it was ready")
            if progress.used.get(0, 0.0) > START_WORK:
                raise NeverReady(f"the rank server worked for {START_WORK:.0f} s and was not ready")
        return message

    def _message(self, timeout: float) -> Message | None:
        """The next message, or None when none came in time; raises ServerDied at the end of the stream."""
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
        return msgspec.convert(json.loads(line), Message)  # msgspec reads no JSON with NaN in it

    def _last_words(self) -> str:
        lines = text(self.folder / "server.log").strip().splitlines()
        return f"the rank server ended: {lines[-1] if lines else 'without a message'}"

    def _stop(self, leaving: bool = False) -> None:
        if not self._process:
            return
        assert self._process.stdin and self._process.stdout
        with contextlib.suppress(ServerDied):
            if not leaving:
                self._send({"end": True})  # the folder stays, unlike after the end of a supervisor
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
        killed = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("TMPDIR", "").startswith(str(self.folder)):
                    process.kill()
                    killed.append(process)
        psutil.wait_procs(killed, timeout=5)

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
