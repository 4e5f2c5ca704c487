"""The processors and memory that a machine gives this process, less where a container or a batch system says so."""

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path


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
