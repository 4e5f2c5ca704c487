"""Temporary folders, and locks, that go with the process that has them, however it ends."""

import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

PREFIX = "faultline-"
# Seconds in which a process that was started has an environment that can be read.
STARTS_WITHIN = 1
# Other machines may share the folder that has them all, and need not see who holds a lock.
HELD = f".held-on-{platform.node()}"


def lock(file: Path) -> FileLock | None:
    """The lock of a file, if nobody has it: the system gives it back when its process ends, however that ends."""
    lock = FileLock(file, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except (Timeout, NotImplementedError):  # the second, where a file system has no locks
        return None
    return lock


@dataclass(frozen=True)
class Scratch:
    """A folder, and the lock that says that its process lives."""

    path: Path
    held: FileLock | None

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.held:
            self.held.release()


def made(prefix: str = PREFIX, within: str = "") -> Scratch:
    """A new folder, in that for temporary files unless `within` says otherwise; those that nobody has any more go."""
    parent = Path(within or tempfile.gettempdir())
    sweep(parent)
    new = Path(tempfile.mkdtemp(prefix=f"new-{prefix}", dir=parent))
    held = lock(new / HELD)
    path = new.with_name(new.name.removeprefix("new-"))  # nobody sweeps it before it is held
    return Scratch(new.rename(path), held)


def sweep(parent: Path) -> None:
    """Remove folders whose process was killed on this machine, and end what runs in them."""
    for file in parent.glob(f"{PREFIX}*/{HELD}"):
        with contextlib.suppress(OSError):  # another process sweeps, too
            if free := lock(file):
                end_processes(file.parent)
                Scratch(file.parent, free).close()


def processes(folder: Path) -> Iterator[psutil.Process]:
    """What works in a folder, by the TMPDIR that it has or has inherited; this process is left out."""
    for pid in psutil.pids():  # process_iter() would give the one that had the number at an earlier look
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if pid != os.getpid() and Path(_environment(process).get("TMPDIR", "")).is_relative_to(folder):
                yield process


def _environment(process: psutil.Process) -> dict[str, str]:
    """The environment of a process; the system shows none of one that is starting, so that one is waited for."""
    while not (environment := process.environ()):
        if process.status() == psutil.STATUS_ZOMBIE or time.time() - process.create_time() > STARTS_WITHIN:
            break
        time.sleep(0.01)
    return environment


def end_processes(folder: Path) -> None:
    """Kill all that works in a folder."""
    killed = []
    for process in processes(folder):
        with contextlib.suppress(psutil.Error):
            process.kill()
            killed.append(process)
    psutil.wait_procs(killed, timeout=5)
