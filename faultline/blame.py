"""Whose an error is: this suite's own, or that of what it runs."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
LIBRARIES = (*{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, "<")

# They give a failure's or somebody's model to engine and trainer: what these raise then is theirs.
RUN = ("checkpointing", "rank", "roundtrip", "strategies")
# They call the model, or take what it or its trainer returns, be it no loss or no model: any error there may be theirs.
TAKE = ("accelerated", "inputs", "releases", "scenario", "targets", "trainer")
_FRAME = re.compile(r'^  File "([^"]+)", line (\d+), in (\S+)\n(?:    (.*))?', re.MULTILINE)
# Whoever happens to run then meets these: an error of a kernel that comes late, the memory's end.
_ANYBODY = re.compile(r"CUDA error|out of memory|not enough memory|allocate memory")


class Own(Exception):
    """Stands for an error of this suite's own; the message is what `own_fault` says of it."""


def own_fault(error: BaseException) -> str:
    """The place in this suite's own code that an error is the fault of, ``compare.py:95 in digest``, else empty.

    That is its innermost frame outside of libraries. What this suite raises by intent is no fault of its own.
    """
    if type(error).__module__.startswith("faultline.") or _ANYBODY.search(f"{type(error).__name__}: {error}"):
        return ""
    within = False  # a library
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(LIBRARIES):
            within = True
            continue
        file = Path(frame.filename).resolve()
        if FOLDER not in file.parents:
            return ""
        module = file.relative_to(FOLDER).parts[0].removesuffix(".py")
        return "" if module in TAKE or (within and module in RUN) else f"{file.name}:{frame.lineno} in {frame.name}"
    return ""


def places(trace: str, folder: Path) -> list[str]:
    """The frames of a printed traceback that are in a folder's own files: ``train.py:12 in forward: return x @ w``."""
    found = []
    for file, line, name, source in _FRAME.findall(trace):
        path = Path(file)
        if folder in path.parents and FOLDER not in path.parents and "site-packages" not in path.parts:
            found.append(f"{path.relative_to(folder)}:{line} in {name}" + (f": {source.strip()}" if source else ""))
    return found


def told(place: str, error: str) -> str:
    """One line that says so."""
    return f"a fault of Faultline's own, not of the model: {place}: {error}"
