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
TICK = 0.25  # seconds between two looks at ranks of which none has failed
QUIET = 12  # looks in a row that find every rank asleep and at the same place: a hang
STUCK = 80  # looks within which no rank left its place in its Python code, busy or not: a hang as well
SETTLE_TICK = 0.05  # seconds between two looks once a rank has failed
SETTLED = 6  # looks in a row that find its peers asleep: they have no more to say
PATIENCE = 3.0  # seconds that peers which don't fall asleep are given to add to what is known by then


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
        failed_at = 0.0
        while len(reports.keys() | exits.keys()) < world_size:
            event = self._event(SETTLE_TICK if failed_at else TICK)
            now = time.monotonic()
            if event is not None:
                if _collect(event, reports, exits):
                    failed_at = failed_at or now
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
        for rank, status in enumerate(event["done"]):
            if status != -signal.SIGKILL:  # which is most likely the server's own
                exits.setdefault(rank, status)
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
    """Tells ranks that wait for each other for ever from ranks that work, by what the processes do.

    It counts looks, not seconds: a supervisor that was held up itself has seen nothing.
    """

    def __init__(self, pids: list[int], folder: Path) -> None:
        self.folder = folder
        self.pids = pids
        self.cpu = -1.0
        self.others: dict[int, float] = {}  # what the ranks started, with its processor time
        self.sleeps = self.looks = 0
        self.place = ""  # the ranks' stacks half way to QUIET
        self.places: list[str] = []

    def asleep(self, ranks: list[int]) -> int:
        """Look at the ranks: how many times in a row all of them were asleep and used no processor."""
        cpu, asleep = 0.0, True
        for rank in ranks:
            try:
                process = psutil.Process(self.pids[rank])
                times = process.cpu_times()
                asleep = asleep and process.status() in (psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED)
            except psutil.NoSuchProcess:
                asleep = False  # its end is about to be told
                continue
            cpu += times.user + times.system
        if not asleep or abs(cpu - self.cpu) > 0.02:  # less when a rank was done in between
            self.cpu, self.sleeps = cpu, 0
        else:
            self.sleeps += 1
        return self.sleeps

    def stalled(self, ranks: list[int]) -> str:
        """Look at the ranks: what shows that none of them makes progress, or nothing."""
        self.looks += 1
        sleeps = self.asleep(ranks)
        if sleeps == QUIET // 2:
            self.place, self.others = self.stacks(), self.descendants()
        if sleeps == QUIET:
            if self.stacks() == self.place and self.descendants() == self.others:
                return f"every rank slept for {QUIET * TICK:.0f} s at the same place"
            self.sleeps = 0
        if self.looks % (STUCK // 4) == 0:
            self.places = [*self.places, self.stacks()][-5:]
            if len(self.places) == 5 and len(set(self.places)) == 1 and self.places[0]:
                return f"every rank stood at the same place for {STUCK * TICK:.0f} s"
        return ""

    def descendants(self) -> dict[int, float]:
        """The processes that ranks started and may be waiting for, with the processor time that each used."""
        found = {}
        for pid in self.pids:
            try:
                for process in psutil.Process(pid).children(recursive=True):
                    times = process.cpu_times()
                    found[process.pid] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return found

    def stacks(self, wake: bool = False) -> str:
        """Have every rank write its Python stack, and return them all; a stopped rank can't unless it is woken."""
        for rank, pid in enumerate(self.pids):
            try:
                (self.folder / f"rank{rank}.stack").write_text("")
                os.kill(pid, signal.SIGUSR1)
                if wake:
                    os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        time.sleep(0.2)
        return "".join(_text(self.folder / f"rank{rank}.stack") for rank in range(len(self.pids)))


def _collect(event: dict[str, Any], reports: dict[int, dict[str, Any]], exits: dict[int, int]) -> bool:
    """Keep what an event says of a rank; whether it tells the cause of a failure, not just that a peer is gone."""
    if "exit" in event:
        exits[event["rank"]] = event["exit"]
        return True
    reports[event["rank"]] = event["report"]
    return bool(event["report"]["error"]) and not is_victim(event["report"]["error"])


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace").replace("\0", "")
    except FileNotFoundError:
        return ""
