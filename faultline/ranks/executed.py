"""Which functions and module bodies of installed packages run in a rank: never recorded while a cell is measured."""

import cProfile
import inspect
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

INSTALLED = ("/site-packages/", "/dist-packages/")
BODY = ""  # stands for a module's body


@contextmanager
def recorded(by_file: dict[str, list[str]]) -> Iterator[None]:
    """Fill a mapping from files, below the folder of installed packages, to the qualified names of what ran.

    A function's name is that which releases/code_changes.py gives it. The body of a module that was imported
    before counts as well: all that runs here uses what it left.
    """
    codes: dict[int, CodeType] = {}  # by identity: a code's hash and equality look at all of it
    stop = _monitor(codes) if sys.version_info >= (3, 12) else _profile(codes)
    try:
        yield
    finally:
        stop()
        files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
        ran = {(place(code.co_filename), code_name(code)) for code in [*codes.values()]}  # threads may still add some
        ran |= {(place(file), BODY) for file in files if isinstance(file, str) and file.endswith(".py")}
        for file, name in sorted(ran):
            if file:
                by_file.setdefault(file, []).append(name)


def place(file: str) -> str:
    """A file below the folder of installed packages; empty for any other."""
    for folder in INSTALLED:
        _, there, below = file.rpartition(folder)
        if there:
            return below
    return ""


def code_name(code: CodeType) -> str:
    """The function that code is of, or is a lambda or comprehension in; a class's body is a part of its module's."""
    parts = code.co_qualname.split(".")
    unnamed = next((n for n, part in enumerate(parts) if part.startswith("<") and part != "<locals>"), len(parts))
    names = parts[:unnamed]
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a class's body: what it is in is the function around it, if any
        while names and names[-1] != "<locals>":
            names.pop()
    while names and names[-1] == "<locals>":
        names.pop()
    return ".".join(names)


def _profile(codes: dict[int, CodeType]) -> Any:
    """Record by cProfile, which counts calls in C; Python before 3.12 has nothing cheaper.

    A profiler is of one thread: a new thread's first event gives it one of its own.
    """
    profilers: list[cProfile.Profile] = []

    def begin(frame: FrameType, event: str, argument: object) -> None:
        codes[id(frame.f_code)] = frame.f_code
        profilers.append(cProfile.Profile(subcalls=False, builtins=False))
        profilers[-1].enable()

    threading.setprofile(begin)
    begin(sys._getframe(), "call", None)

    def stop() -> None:
        threading.setprofile(None)
        profilers[0].disable()  # this thread's
        entries = [entry for profiler in profilers for entry in profiler.getstats()]
        codes.update({id(entry.code): entry.code for entry in entries if isinstance(entry.code, CodeType)})

    return stop


def _monitor(codes: dict[int, CodeType]) -> Any:
    """Record by sys.monitoring, which stops asking of a function when that has begun once."""
    monitoring = vars(sys)["monitoring"]  # which Python 3.11, whose types are checked, lacks
    tool, event = monitoring.PROFILER_ID, monitoring.events.PY_START

    def begins(code: CodeType, offset: int) -> object:
        codes[id(code)] = code
        return monitoring.DISABLE

    monitoring.use_tool_id(tool, "faultline")
    monitoring.register_callback(tool, event, begins)
    monitoring.set_events(tool, event)

    def stop() -> None:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)

    return stop
