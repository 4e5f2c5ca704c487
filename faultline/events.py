"""What went wrong in a log, and which of it came first."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from faultline.oracle import last_line
from faultline.ranks import is_victim

# What a launcher or a pool says of the processes that it started: another error stands behind it.
WRAPPERS = (
    *("ChildFailedError", "CalledProcessError"),
    *("ProcessRaisedException", "ProcessExitedException", "RemoteTraceback", "RayTaskError"),
    *("ExceptionGroup", "BaseExceptionGroup"),
)
# How a process ends that others end, or that waited for them in vain.
TIMEOUT = "timeout"
FROM_OUTSIDE = (*WRAPPERS, "KeyboardInterrupt", "SystemExit", "SignalException", "SIGTERM", "SIGINT", TIMEOUT)


@dataclass(frozen=True)
class Event:
    """One thing that went wrong, as a log tells it.

    kind       error (a traceback), line (an error without one), abort (a C++ exception), signal
    number     of its first line in the file; `last`, the line that names the error
    frames     the last lines of its traceback
    survived   that its writer reported a loss afterwards
    time       of its first line, in seconds; None where that names none
    chain      number of the first event's line, of those that were raised while each other was handled
    explained  that another event brought it about
    """

    kind: str
    type: str
    message: str
    file: str
    number: int
    last: int
    rank: int | None = None
    stream: str = ""
    frames: str = ""
    survived: bool = False
    time: float | None = None
    chain: int = 0
    explained: bool = False

    @cached_property
    def text(self) -> str:
        """``Type: message``, and of a bare assert the line that failed, as the oracle words it."""
        message = self.message
        if not message.strip() and self.kind == "error" and self.type.endswith("AssertionError"):
            message = last_line(self.frames)
        return f"{self.type}: {message}" if message else self.type

    @property
    def headline(self) -> str:
        """Its text up to the end of the message's first line: in a log, what follows need not belong to it."""
        return self.text.partition("\n")[0]

    @property
    def name(self) -> str:
        """Its type without the module."""
        return self.type.rpartition(".")[2]

    @cached_property
    def follows(self) -> bool:
        """Whether it only says that something else went wrong before: a peer that is gone, a launcher's summary."""
        return self.explained or self.name in FROM_OUTSIDE or is_victim({"message": self.text})


@dataclass(frozen=True)
class Found:
    """The events of a log in their order; `root` is the rank that a launcher's summary names as the first.

    `more` were left out, as there were too many; `partly` says that so many lines told of some that of the later ones
    only tracebacks were read.
    """

    events: tuple[Event, ...]
    root: int | None = None
    more: int = 0
    partly: bool = False

    def cause(self) -> Event | None:
        """The first cause: what only follows comes last, then what was survived, then errors without a traceback.

        Among equals the earliest, if each has a time, or else the one that was read first.
        """

        def weight(e: Event) -> tuple[bool, ...]:
            return e.follows, e.survived, e.kind == "line", self.root is not None and e.rank != self.root

        least = min(map(weight, self.events), default=())
        equals = [event for event in self.events if weight(event) == least]
        times = [event.time for event in equals if event.time is not None]
        if equals and len(times) == len(equals):
            return equals[times.index(min(times))]
        return equals[0] if equals else None

    def chain(self, event: Event) -> list[Event]:
        """The events that were raised while each other was handled, an event among them, the first raised first."""
        whose = event.file, event.stream, event.chain
        return [e for e in self.events if (e.file, e.stream, e.chain) == whose] if event.chain else [event]
