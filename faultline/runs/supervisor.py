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
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from faultline.base.errors import UNREADABLE, NeverReady, ServerDied
from faultline.base.interpreters import command
from faultline.base.paths import ROOT
from faultline.base.text import cut
from faultline.ranks import preload, start
from faultline.ranks.job import Job
from faultline.ranks.report import Message
from faultline.runs import scratch
from faultline.runs.hangs import TICK, Progress, text
from faultline.runs.nodes import DEADLINE, Begun, Finished, Left, Node, Seen

if TYPE_CHECKING:
    from faultline.runs.gpus import Gpu

SHOWN = 100  # characters of what is no report
START_LOOKS = 480  # looks in a row that find a server asleep that isn't ready yet
START_WORK = 120.0  # seconds of processor time that it may take to get ready

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


class Local:
    """The ranks of a cell that run here, by their numbers: their processes, their files, and how they are."""

    def __init__(self, pids: Sequence[int], folder: Path, first: int) -> None:
        self.folder, self.first, self.number = folder, first, len(pids)
        self.progress = Progress(pids, folder, first)
        self.over: set[int] = set()  # those that have reported, or ended
        self.failed = False
        self.hang = ""

    def heard(self, message: Message) -> None:
        if message.report or message.exit is not None:
            self.over.add(message.rank - self.first)

    def seen(self, failed: bool) -> Seen:
        """Look at the ranks, as none was heard of for a while. They hang until one of them moves again."""
        running = [rank for rank in range(self.number) if rank not in self.over]
        if failed and not self.failed:
            self.failed, self.progress.sleeps = True, 0  # peers of a rank that failed are given time from then on
        if failed:
            return Seen(sleeps=self.progress.asleep(running))
        hang = self.progress.stalled(running)
        self.hang = hang or (self.hang if self.progress.sleeps else "")
        return Seen(sleeps=self.progress.sleeps, hang=self.hang)

    def left(self) -> list[Left]:
        """What each rank left."""
        return [self._left(f"{self.folder}/rank{self.first + rank}") for rank in range(self.number)]

    def _left(self, files: str) -> Left:
        shown = json.loads(text(Path(f"{files}.evidence")) or "{}")
        return Left(text(Path(f"{files}.stack")), text(Path(f"{files}.log"))[-20000:], shown)


class RankServer:
    """One rank server and the folder that its cells work in. Use it as a context manager.

    Its ranks meet over loopback, or at an `address` of this machine, by the interface that has it. With `peers`, on
    other nodes, the ranks of each cell are spread over all of them. It runs on some `cores` alone, if any are named.
    """

    def __init__(
        self,
        python: str,
        deadline: float = DEADLINE,
        device: str = "cpu",
        address: str = "",
        name: str = "",
        cores: frozenset[int] = frozenset(),
    ) -> None:
        self.python = python
        self.deadline = deadline
        self.device, self.cores = device, cores
        self._scratch = scratch.made()
        self.folder = self._scratch.path
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()
        self._buffer = b""
        self.killed = False
        self.address, self.name = address, name or address
        self.peers: Sequence[Node] = ()
        self._folder: Path | None = None  # made for the cell that runs
        self._cell: Local | None = None
        self.gpus: Sequence[Gpu] = ()  # that the next cell has
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
                command(self.python, start.__file__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=inherited(self.python) | preload.environment(self.device) | self._of_ranks,
                start_new_session=True,
            )
            self.use(self.cores)
        self._buffer = b""
        try:
            self.versions = self._ready().versions
        except BaseException as error:
            self._process.kill()  # busy with imports, it would not hear of the end
            self._stop()
            if type(error) is ServerDied and not self.killed:
                raise NeverReady(str(error)) from None
            raise

    def use(self, cores: frozenset[int]) -> None:
        """Run on these cores alone, if any are named, as does each rank from now on."""
        self.cores = cores
        if cores and self._process and self._process.poll() is None:
            os.sched_setaffinity(self._process.pid, cores)

    def begin(self, job: Job) -> Begun:
        """Start the ranks of a cell that are for this server; of several nodes, the first makes the folder for all."""
        self.start()
        if not job.folder:
            self._folder = Path(tempfile.mkdtemp(dir=self.folder, prefix="cell-"))
        folder = self._folder or Path(job.folder)
        address = self.address if job.node else ""
        uuids, numbers = [gpu.uuid for gpu in self.gpus], [gpu.number for gpu in self.gpus]
        meeting = job.meeting or address
        job = replace(job, folder=str(folder), gpus=uuids, visible=numbers, address=address, meeting=meeting)
        self._send({"job": asdict(job)})
        started = self._message(30.0)
        if started is None or not started.pids:
            raise ServerDied("the rank server did not answer")
        self._cell = Local(started.pids, folder, job.first_rank)
        return Begun(started.pids, job.folder, job.meeting, started.port, time.monotonic())

    def look(self, timeout: float, failed: bool) -> Seen:
        """What the ranks say within so many seconds, or how they are."""
        assert self._cell
        if message := self._message(timeout):
            self._cell.heard(message)
            return Seen([message])
        return self._cell.seen(failed)

    def finish(self, hung: bool) -> Finished:
        """End the ranks of the cell; of a hanging one each leaves its stack."""
        cell, heard = self._cell, []
        assert cell
        if hung:
            cell.progress.stacks(wake=True)
        self._send({})
        while (message := self._message(30.0)) and not message.done:
            heard.append(message)
        if message is None:
            raise ServerDied("the rank server did not end its ranks")
        finished = Finished(heard, cell.left())
        self._clear()
        return finished

    def abort(self, leaving: bool) -> None:
        """A cell that was not ended in order takes its server with it. A supervisor that leaves may be killed soon."""
        self._stop(leaving)
        self._clear()

    def _clear(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = self._cell = None

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
        try:
            return msgspec.convert(json.loads(line), Message)  # msgspec reads no JSON with NaN in it
        except UNREADABLE:
            shown = cut(line[:SHOWN].decode(errors="replace"), SHOWN)
            raise ServerDied(f"a rank wrote something else than its report into its pipe: {shown}") from None

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
        if self._process.wait():  # it could not clear up: its ranks die with it, what they started does not
            scratch.end_processes(self.folder)
        self._process.stdout.close()
        self._process = None

    def kill(self) -> None:
        """From any thread: end the server at once and for good. Where a cell was run on it, ServerDied is raised."""
        with self._starting:
            self.killed = True
            if self._process:
                self._process.kill()

    def close(self) -> None:
        """End the server, its ranks and its folder."""
        self._stop()
        self._scratch.close()
