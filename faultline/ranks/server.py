"""The rank server: imports the libraries under test once, then forks fresh ranks for each cell.

It reads and writes JSON lines on its standard input and output, about one cell at a time. A request has a `job`, or
asks to `end`, or only ends the ranks of the last job, as each does; an answer is a `Message`.
"""

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from faultline.base.packages import versions
from faultline.ranks import preload
from faultline.ranks.job import LOOPBACK, Job
from faultline.ranks.report import Message

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST = 256 << 20  # bytes of a report


def describe() -> dict[str, Any]:
    """The proof that forking is safe, for the evidence of every cell: whether anything but this thread runs."""
    torch = sys.modules["torch"]
    tasks = os.listdir("/proc/self/task")
    shown: dict[str, Any] = {"threads": len(tasks), "cuda_initialised": torch.cuda.is_initialized()}
    return shown | ({"names": _names(tasks)} if len(tasks) > 1 else {})


def _names(tasks: Sequence[str]) -> list[str]:
    """What the threads beside this one are called: by Python, or by the library that started them."""
    main = threading.main_thread()
    python = {str(thread.native_id): thread.name for thread in threading.enumerate() if thread is not main}
    others = [task for task in tasks if task != str(os.getpid())]
    return sorted(python.get(task) or Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in others)


def main() -> None:
    requests = os.dup(0)
    events = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A batch system sends it to every process of a job: the supervisor ends by it, and so this server does, in order.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The supervisor asks for stacks with them, perhaps before a rank has a handler: unhandled, they would kill.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    preload.everything()
    try:
        dismissed = serve(requests, events)
    except BrokenPipeError:
        dismissed = False
    kill([])
    if not dismissed:  # the supervisor is gone and can't clear up any more
        shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


@dataclass
class Rank:
    """A forked rank, as long as its cell runs. Its end is the process's: others may hold the pipe or close it."""

    number: int
    pid: int
    pipe: int
    process: int  # a pidfd, readable from when the process has ended
    buffer: bytes = b""
    watched: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.watched = {self.pipe, self.process}

    def events(self, readable: Sequence[int]) -> bytes:
        """What the rank reported and then how it ended, where one of `readable` says so."""
        ended = self.process in readable
        if ended or self.pipe in readable:
            with contextlib.suppress(BlockingIOError):
                chunk = os.read(self.pipe, 1 << 20)
                self.buffer += chunk
                if not chunk:
                    self.watched.discard(self.pipe)
        lines, newline, self.buffer = self.buffer.rpartition(b"\n")
        if len(self.buffer) > MOST:
            lines, newline, self.buffer = b"no end of its line", b"\n", b""
            self.watched.discard(self.pipe)
        if not ended:
            return lines + newline
        self.watched.discard(self.process)
        return lines + newline + encoded(Message(rank=self.number, exit=peek(self.pid), at=time.monotonic()))

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self.process)


def serve(requests: int, events: int) -> bool:
    """Answer requests, one cell at a time; give back whether the supervisor said goodbye before it closed its end."""
    write(events, encoded(Message(ready=True, versions=versions())))
    buffer = b""
    ranks: list[Rank] = []
    while True:
        watched = [requests, *(fd for rank in ranks for fd in rank.watched)]
        readable, _, _ = select.select(watched, [], [])
        for rank in ranks:
            write(events, rank.events(readable))
        if requests not in readable:
            continue
        chunk = os.read(requests, 1 << 20)
        *lines, buffer = (buffer + chunk).split(b"\n")
        for request in map(json.loads, lines):
            kill([rank.pid for rank in ranks])
            for rank in ranks:
                rank.close()
            ranks = []
            if request.get("end"):
                return True
            if job := request.get("job"):
                ranks, port = start(Job.read(job), (requests, events))
                write(events, encoded(Message(pids=tuple(rank.pid for rank in ranks), port=port)))
            else:
                write(events, encoded(Message(done=True)))
        if not chunk:
            return False


def peek(pid: int) -> int:
    """How a rank ended (negative: by which signal), leaving it to be reaped with its cell."""
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert status
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def encoded(message: Message) -> bytes:
    return json.dumps(asdict(message)).encode() + b"\n"


def write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def start(job: Job, inherited: tuple[int, ...]) -> tuple[list[Rank], int]:
    """Fork the ranks of a cell into a process group of their own; they close what is `inherited` from the server.

    Gives the port at which they meet, too: of a cell on several nodes, the first one has it.
    """
    if job.cell.strategy.startswith("fsdp2"):
        preload.for_fsdp2()
    ranks: list[Rank] = []
    server = os.getpid()
    meeting = None if job.first_rank else socket.create_server((job.meeting or LOOPBACK, 0))
    if meeting:
        job = replace(job, port=meeting.getsockname()[1], listening=meeting.fileno())
    # What the server says of itself is asked here: in a child, there is one thread whatever the server has.
    job = replace(job, at_fork=describe())
    for number in range(job.first_rank, job.first_rank + (job.ranks_here or job.world_size)):
        group = ranks[0].pid if ranks else 0
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != server:
                    os._exit(70)  # it died before this process could ask to die with it
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.setpgid(0, group)
                for rank in ranks:
                    rank.close()
                for fd in (*inherited, reading):
                    os.close(fd)
                if number and meeting:
                    meeting.close()
                become_rank(job, number, writing)
            except BaseException:  # noqa: BLE001 - the log is all that can be had from here
                traceback.print_exc()
            finally:
                os._exit(70)
        os.close(writing)
        with contextlib.suppress(OSError):  # the child did it first and may even have ended
            os.setpgid(pid, group or pid)
        os.set_blocking(reading, False)
        ranks.append(Rank(number, pid, reading, os.pidfd_open(pid)))
    if meeting:
        meeting.close()
    return ranks, job.port


def become_rank(job: Job, rank: int, pipe: int) -> None:
    """In the child: run, report on the pipe, and wait to be killed.

    A rank never leaves by itself: one that returns can hang in gloo's
    destructor or reset a connection that a slower peer still reads.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if job.gpus:  # CUDA reads it when it is first used, which is never before the fork
        # Numbers, since DeepSpeed reads nothing else (cuda_accelerator.py, _get_nvml_gpu_id).
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job.visible))
    log = os.open(f"{job.folder}/rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    stacks = open(f"{job.folder}/rank{rank}.stack", "a")  # noqa: SIM115 - must outlive this function
    faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
    signal.signal(signal.SIGUSR2, functools.partial(write_stack, stacks))
    signal.siginterrupt(signal.SIGUSR2, False)
    report = importlib.import_module("faultline.ranks.main").main(job, rank)
    write(pipe, encoded(Message(rank=rank, report=report)))
    reported()


def write_stack(file: TextIO, *_: object) -> None:
    """Answer a signal as Python does, between two instructions: no other thread runs Python meanwhile."""
    faulthandler.dump_traceback(file, all_threads=True)


def reported() -> None:
    """Wait to be killed; its name shows a reader of stacks that this rank doesn't cause the hang."""
    while True:
        signal.pause()


def kill(pids: list[int]) -> None:
    """End a cell's ranks and everything else that descends from this process."""
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pids[0], signal.SIGKILL)
    while True:
        # A rank may have left the group, and what an ended one had started was handed to its subreaper: here.
        for child in children():
            os.kill(child, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split()]


if __name__ == "__main__":
    main()
