"""Whether ranks work or wait for each other for ever, judged by what their processes do."""

import contextlib
import ctypes
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

TICK = 0.25  # seconds between two looks at the ranks
QUIET = 12  # looks in a row that find every rank asleep and at the same place: a hang
STUCK = 80  # looks within which no rank left its place, busy or not: a hang as well

LIBC = ctypes.CDLL(None)  # os.kill knows no threads, and raises where a rank has just ended
IDLE = 0.05  # seconds of processor time that the helper threads of a waiting rank may use meanwhile
# The line in the innermost function of each thread: a loop that spins has several.
LINE = re.compile(r'(most recent call first\):\n  File "[^"]+"), line \d+')
# What answered in a rank that ran; see ranks/server.py.
HANDLER = re.compile(r'  File "[^"]+", line \d+ in write_stack\n')
ASLEEP = (psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED)


class Progress:
    """What was seen of a cell's ranks.

    It counts looks, not seconds: a supervisor that was held up itself has seen nothing in the meantime. `first` is the
    number of the first of them, by which its files are named.
    """

    def __init__(self, pids: Sequence[int], folder: Path, first: int = 0) -> None:
        self.pids = pids
        self.folder = folder
        self.first = first
        self.used: dict[int, float] = {}  # processor time of each rank when one was last seen busy
        self.sleeps = self.looks = 0
        self.places: list[object] = []  # where the ranks were, over the last STUCK looks
        self.asked: object = None  # where they were when they had stood for most of these, whether asleep or not
        self.bed: object = None  # where they were after half of QUIET

    def asleep(self, ranks: list[int]) -> int:
        """Look at some ranks: how many times in a row all of them were asleep and all but idle."""
        used, busy = {}, False
        for rank in ranks:
            try:
                process = psutil.Process(self.pids[rank])
                times = process.cpu_times()
                used[rank] = times.user + times.system
                awake = process.status() not in ASLEEP or used[rank] - self.used.get(rank, 0.0) > IDLE
                busy = busy or awake or waits_for_disk(self.pids[rank])
            except psutil.NoSuchProcess:
                busy = True  # its end is about to be reported
        if busy:
            self.used, self.sleeps = used, 0
        else:
            self.sleeps += 1
        return self.sleeps

    def stalled(self, ranks: list[int]) -> str:
        """Look at the ranks that still run: what shows that none of them makes progress, or nothing."""
        sleeps = self.asleep(ranks)
        if sleeps == QUIET // 2:
            self.bed = self.place()
        elif sleeps == QUIET:
            if self.place() == self.bed:
                return f"every rank slept for {QUIET * TICK:.0f} s without using the processor"
            self.sleeps = 0
        self.looks += 1
        if self.looks % (STUCK // 4) == 0:
            self.places = [*self.places, self.place(running=True)][-5:]
            if len(self.places) >= 4 and all(place == self.places[-1] for place in self.places[-4:]):
                before, self.asked = self.asked, self.place()
                if self.places[0] == self.places[-1] and before == self.asked:
                    return f"every rank stood at the same place for {STUCK * TICK:.0f} s"
        return ""

    def place(self, running: bool = False) -> tuple[str, dict[int, float]]:
        """Where the ranks are in their Python code, and what the programs that they may wait for have done."""
        return LINE.sub(r"\1", HANDLER.sub("", self.stacks(running))), self.descendants()

    def descendants(self) -> dict[int, float]:
        """The processes that ranks started, such as compilers, with the processor time that each has used."""
        used = {}
        for pid in self.pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in psutil.Process(pid).children(recursive=True):
                    times = process.cpu_times()
                    used[process.pid] = times.user + times.system
        return used

    def stacks(self, running: bool = False, wake: bool = False) -> str:
        """Have every rank write its Python stacks, and return them all; a stopped rank can't unless it is woken.

        One that may be `running` writes them when Python comes to it, and none while it is in a library's code: the
        stack of a thread that runs meanwhile can't be read safely, and its rank may crash.
        """
        files = [self.folder / f"rank{self.first + rank}.stack" for rank in range(len(self.pids))]
        for pid, file in zip(self.pids, files, strict=True):
            file.write_text("")
            # To its main thread: any other thread of a stopped rank might answer when the main one has gone on.
            LIBC.tgkill(pid, pid, signal.SIGUSR2 if running else signal.SIGUSR1)
            if wake:
                LIBC.kill(pid, signal.SIGCONT)
        before, written = [""], [text(file) for file in files]
        for _ in range(5 if running else 10):  # until all have written and none goes on
            if all(written) and written == before:
                break
            time.sleep(0.1)
            before, written = written, [text(file) for file in files]
        return "".join(written)


def waits_for_disk(pid: int) -> bool:
    """Whether any thread of a process waits for a disk: the others may sleep until it has its pages."""
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text(errors="replace").rpartition(")")[2].split()[0] == "D":
                return True
    return False


def text(file: Path) -> str:
    """What a rank wrote, or nothing where it did not get to it."""
    try:
        return file.read_text(errors="replace").replace("\0", "")
    except FileNotFoundError:
        return ""
