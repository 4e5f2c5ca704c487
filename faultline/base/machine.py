"""This machine: processors and memory, less where a container or batch system says so, and starting other programs."""

import itertools
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT

PATIENCE = 300.0  # seconds that an answer may take; importing torch takes some of them on a busy machine
MOST = 8 << 20  # bytes of an answer; the list of an environment's packages has some thousand


@dataclass(frozen=True)
class ControlGroup:
    """The files of a version of Linux's control groups: the limit, what is taken, and what of that are files' pages."""

    limit: str
    used: str
    pages: str  # in memory.stat: pages of files that nobody needs, which are given back at once


GROUPS = Path("/sys/fs/cgroup")
CONTROL_GROUPS = (
    ControlGroup("memory.max", "memory.current", "inactive_file"),
    ControlGroup("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def cores() -> int:
    """The processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def shares(workers: int) -> list[frozenset[int]]:
    """The processors that each of so many workers has for itself, or all of them for each where they are too few."""
    every = sorted(os.sched_getaffinity(0))
    bounds = [number * len(every) // workers for number in range(workers + 1)]
    parts = [frozenset(every[first:last]) for first, last in itertools.pairwise(bounds)]
    return parts if all(parts) else [frozenset(every)] * workers


def memory(groups: Path = GROUPS) -> int:
    """Bytes of memory that can be had without swapping."""
    import psutil

    free = psutil.virtual_memory().available
    for version in CONTROL_GROUPS:
        try:
            limit, used = int((groups / version.limit).read_text()), int((groups / version.used).read_text())
            stat = (groups / version.used).with_name("memory.stat").read_text()
        except (OSError, ValueError):  # there is no such group, or no limit in it
            continue
        pages = re.search(rf"^{version.pages} (\d+)$", stat, re.MULTILINE)
        free = min(free, max(0, limit - used + (int(pages[1]) if pages else 0)))
    return free


def command(python: str, *words: str) -> list[str]:
    """The words that start an interpreter, which by itself looks for modules in the current folder first."""
    return [python, "-P", *words]


def ask(
    words: Sequence[str],
    text: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    patience: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Give a program a text to read; its exit code, and what it printed.

    It runs in a folder of ours. Raises UsageError where it doesn't end in time, prints without end, or can't be run.
    """
    with tempfile.TemporaryFile() if text else open(os.devnull, "rb") as given:
        if text:
            given.write(text.encode())
            given.seek(0)
        try:
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"{words[0]} can't be run: {error.strerror or error}") from None
    with process:
        try:
            out, err = _read(process, time.monotonic() + patience)
            code = process.wait(patience)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # what it started, too; it is not reaped yet
            if isinstance(error, TimeoutError | subprocess.TimeoutExpired):
                raise UsageError(f"{words[0]} gave no answer within {patience:.0f} seconds") from None
            if isinstance(error, OverflowError):
                raise UsageError(f"{words[0]} printed more than {MOST >> 20} MB in place of an answer") from None
            raise
    return subprocess.CompletedProcess(words, code, out.decode(errors="replace"), err.decode(errors="replace"))


def _read(process: subprocess.Popen[bytes], end: float) -> tuple[bytes, bytes]:
    """What a program prints until it closes both streams; TimeoutError or OverflowError where that is too much."""
    assert process.stdout and process.stderr
    streams = {process.stdout: bytearray(), process.stderr: bytearray()}
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if (left := end - time.monotonic()) <= 0:
                raise TimeoutError
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                streams[key.fileobj] += chunk  # type: ignore[index]
                if len(streams[key.fileobj]) > MOST:  # type: ignore[index]
                    raise OverflowError
    return bytes(streams[process.stdout]), bytes(streams[process.stderr])
