"""What a file holds, whoever made it: a pipe would keep us waiting, and a device has no end."""

import os
import stat
from pathlib import Path


def real(path: str | Path) -> Path:
    """Where a path leads to; unlike `resolve`, it raises nothing for a loop of links."""
    return Path(os.path.realpath(path))


def content(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, or so many of them; raises OSError for what is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most) or b""  # nothing where it would have to be waited for
    finally:
        os.close(descriptor)
