"""The supervisor's side of the rank server: send a cell, watch its ranks, collect what became of each."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from faultline import server
from faultline.catalogue import ROOT

DEADLINE = 120.0  # seconds that a cell may take at the very most
QUIET = 3.0  # seconds in which every rank sleeps and uses no processor: a hang
STUCK = 20.0  # seconds in which every rank shows the same Python stack while it spins: a hang as well
GRACE = 0.3  # seconds that the peers of a rank that failed have to report their own error
PATIENCE = 3.0  # the same, while all that is known is that a peer is gone: the cause is still to come
TICK = 0.25


# What a rank says when its peer is gone: it follows from a failure and never is the cause.
VICTIM = re.compile(
    r"Connection (reset|closed) by peer|Broken pipe|Timed out waiting|recvValue failed|Socket closed|"
    r"Connection refused|failed to recv|NCCL communicator was aborted|remote process exited"
)


def is_victim(error: dict[str, Any]) -> bool:
    """Whether a rank's error only says that a peer is gone."""
    return bool(VICTIM.search(error["message"]))


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended: with a report, by an exit code (negative: a signal), or killed while it hung."""

    report: dict[str, Any] | None = None
    exit: int | None = None
    stack: str = ""
    log: str = ""


@dataclass(frozen=True)
class Ended:
    """What became of a cell's ranks; `hang` says what was seen when they made no progress."""

    ranks: list[RankEnd]
    hang: str = ""
    seconds: float = 0.0
    pids: list[int] = field(default_factory=list)


class ServerDied(Exception):
    """The rank server itself ended, which says nothing of the cell that it was running."""


class RankServer:
    """One rank server and the folder that its cells work in. Use it as a context manager."""

    def __init__(self, python: str, deadline: float = DEADLINE) -> None:
        self.python = python
        self.deadline = deadline
        self.folder = Path(tempfile.mkdtemp(prefix="faultline-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self.greeting: dict[str, Any] = {}

    def __enter__(self) -> RankServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the server unless it runs; raises ServerDied with its last words if it can't."""
        if self._process and self._process.poll() is None:
            return
        with open(self.folder / "server.log", "wb") as log:
            self._process = subprocess.Popen(
                [self.python, "-m", "faultline.server"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **server.environment(), "TMPDIR": str(self.folder)},
                start_new_session=True,
            )
        self._buffer = b""
        greeting = self._event(120.0)
        if greeting is None:
            raise ServerDied("the rank server did not get ready within 120 s")
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
        reports: dict[int, dict[str, Any]] = {}
        exits: dict[int, int] = {}
        hang = ""
        failed_at = grace = 0.0
        while len(reports.keys() | exits.keys()) < world_size:
            event = self._event(0.02 if failed_at else TICK)
            now = time.monotonic()
            if event is None:
                if failed_at and now - failed_at > grace:
                    break
                hang = "" if failed_at else progress.stalled(set(reports) | set(exits))
                if not hang and now - started > self.deadline:
                    hang = f"still running after {self.deadline:.0f} s"
                if hang:
                    progress.stacks()
                    break
            elif "report" in event:
                reports[event["rank"]] = event["report"]
                if event["report"]["error"]:
                    cause = not is_victim(event["report"]["error"])
                    failed_at, grace = failed_at or now, GRACE if cause else grace or PATIENCE
            elif "exit" in event:
                exits[event["rank"]] = event["exit"]
                failed_at, grace = failed_at or now, GRACE
        seconds = time.monotonic() - started
        self._send({"kill": True})
        while (event := self._event(30.0)) is not None and "done" not in event:
            if "exit" in event and event["exit"] != -signal.SIGKILL:
                exits[event["rank"]] = event["exit"]
        if event is None:
            raise ServerDied("the rank server did not end its ranks")
        ends = [
            RankEnd(
                reports.get(rank),
                exits.get(rank),
                _text(folder / f"rank{rank}.stack"),
                _text(folder / f"rank{rank}.log")[-20000:],
            )
            for rank in range(world_size)
        ]
        return Ended(ends, hang, seconds, pids)

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process and self._process.stdin
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ServerDied(self._last_words()) from None

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
        lines = _text(self.folder / "server.log").strip().splitlines()
        return f"the rank server ended: {lines[-1] if lines else 'without a word'}"

    def _stop(self) -> None:
        if not self._process:
            return
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.close()  # the server kills its ranks and leaves
        except BrokenPipeError:
            pass
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        """End the server, its ranks and its folder."""
        self._stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Progress:
    """Tells ranks that wait for each other for ever from ranks that work, by what the processes do."""

    def __init__(self, pids: list[int], folder: Path) -> None:
        self.folder = folder
        self.pids = pids
        self.cpu = -1.0
        self.moved = self.changed = time.monotonic()
        self.seen: list[str] = []

    def stalled(self, ended: set[int]) -> str:
        """What shows that no rank makes progress, or nothing."""
        cpu, asleep = 0.0, True
        for rank, pid in enumerate(self.pids):
            if rank in ended:
                continue
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                asleep = asleep and process.status() in (psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED)
            except psutil.NoSuchProcess:
                return ""
            cpu += times.user + times.system
        now = time.monotonic()
        if not asleep or cpu - self.cpu > 0.02:
            self.cpu, self.moved = cpu, now
        if now - self.moved > QUIET:
            return f"every rank slept for {QUIET:.0f} s without using the processor"
        if now - self.changed > STUCK / 4:
            self.changed = now
            self.seen = [*self.seen, self.stacks()][-5:]
            if len(self.seen) == 5 and len(set(self.seen)) == 1 and self.seen[0]:
                return f"every rank stood at the same line for {STUCK:.0f} s"
        return ""

    def stacks(self) -> str:
        """Have every rank write its Python stack, and return them all."""
        for rank, pid in enumerate(self.pids):
            try:
                (self.folder / f"rank{rank}.stack").write_text("")
                os.kill(pid, signal.SIGUSR1)
            except (ProcessLookupError, FileNotFoundError):
                pass
        time.sleep(0.2)
        return "".join(_text(self.folder / f"rank{rank}.stack") for rank in range(len(self.pids)))


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").replace("\0", "")
    except FileNotFoundError:
        return ""
