"""What went wrong in a log, and which of it came first."""

from __future__ import annotations

from dataclasses import dataclass

from faultline.oracle import last_line
from faultline.ranks import is_victim

# What a launcher or a pool says of the processes that it started, and how a process ends that others end.
FROM_OUTSIDE = (
    *("ChildFailedError", "CalledProcessError"),
    *("ProcessRaisedException", "ProcessExitedException", "RemoteTraceback", "RayTaskError"),
    *("KeyboardInterrupt", "SystemExit", "SignalException", "SIGTERM", "SIGINT", "timeout"),
)


@dataclass(frozen=True)
class Event:
    """One thing that went wrong, as a log tells it.

    kind      error (a traceback), line (an error without one), abort (a C++ exception), signal
    number    of its first line in the file; `last`, the line that names the error
    frames    the last lines of its traceback
    survived  that its writer reported a loss afterwards
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

    @property
    def text(self) -> str:
        """``Type: message``, and of a bare assert the line that failed, as the oracle words it."""
        message = self.message
        if not message.strip() and self.kind == "error" and self.type.endswith("AssertionError"):
            message = last_line(self.frames)
        return f"{self.type}: {message}" if message else self.type

    @property
    def follows(self) -> bool:
        """Whether it only says that something else went wrong before: a peer that is gone, a launcher's summary."""
        return self.type.rpartition(".")[2] in FROM_OUTSIDE or is_victim({"message": self.text})


@dataclass(frozen=True)
class Found:
    """The events of a log in their order; `root` is the rank that a launcher's summary names as the first."""

    events: tuple[Event, ...]
    root: int | None = None
    more: int = 0

    def cause(self) -> Event | None:
        """The first cause: what only follows comes last, then what was survived, then errors without a traceback."""
        order = {event: place for place, event in enumerate(self.events)}
        return min(
            self.events,
            key=lambda e: (
                e.follows,
                e.survived,
                e.kind == "line",
                self.root is not None and e.rank != self.root,
                order[e],
            ),
            default=None,
        )
