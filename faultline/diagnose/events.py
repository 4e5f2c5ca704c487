"""The events of a log, which are what went wrong in it: a bounded number of them, and which is the first cause."""

from dataclasses import dataclass, replace
from functools import cached_property

from faultline.base.traces import is_victim, last_line

# The errors of a launcher or a pool about the processes that it started: another error is behind each.
WRAPPERS = (
    *("ChildFailedError", "CalledProcessError"),
    *("ProcessRaisedException", "ProcessExitedException", "RemoteTraceback", "RayTaskError"),
    *("ExceptionGroup", "BaseExceptionGroup"),
)
# How a process ends that others end, or that waited for them until a timeout.
TIMEOUT = "timeout"
FROM_OUTSIDE = (*WRAPPERS, "KeyboardInterrupt", "SystemExit", "SignalException", "SIGTERM", "SIGINT", TIMEOUT)


Writer = tuple[str, str]
"""A file, and the name of who wrote a line of it; empty where no prefix names one."""

Key = tuple[Writer, str]
"""A writer and the text of its error, or the signal that ended it: what makes two events one."""


@dataclass(frozen=True)
class Event:
    """One thing that went wrong, as a log shows it.

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
        return ": ".join(filter(None, (self.type, message)))

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
        """Whether it only reports that something else went wrong before: a lost peer, a launcher's summary."""
        return self.explained or self.name in FROM_OUTSIDE or is_victim(self.text)


@dataclass(frozen=True)
class Events:
    """The events of a log in their order.

    root    the rank that a launcher's summary names as the first to fail
    more    events that were left out, as there were too many
    partly  that of the later lines only tracebacks were read, as too many lines had an error
    """

    events: tuple[Event, ...]
    root: int | None = None
    more: int = 0
    partly: bool = False

    def cause(self) -> Event | None:
        """The first cause: of the events with the least against them the earliest, by their times if each has one."""

        def against(event: Event) -> tuple[bool, ...]:
            """Why an event may not be the first cause, the gravest reason first."""
            consequence, survived, no_traceback = event.follows, event.survived, event.kind == "line"
            other_rank = self.root is not None and event.rank != self.root
            return consequence, survived, no_traceback, other_rank

        least = min(map(against, self.events), default=())
        equals = [event for event in self.events if against(event) == least]
        times = [event.time for event in equals if event.time is not None]
        if equals and len(times) == len(equals):
            return equals[times.index(min(times))]
        return equals[0] if equals else None

    def chain(self, event: Event) -> list[Event]:
        """The events that were raised while each other was handled, an event among them, the first raised first."""
        whose = event.file, event.stream, event.chain
        return [e for e in self.events if (e.file, e.stream, e.chain) == whose] if event.chain else [event]


class EventBuffer:
    """The events of a log, for a while up to twice as many as `most`; `more` were left out."""

    def __init__(self, most: int) -> None:
        self.events: dict[Key, Event] = {}
        self.live: dict[Writer, list[Key]] = {}  # the errors of each writer that were not survived yet
        self.more = 0
        self._most = most

    def add(self, key: Key, event: Event) -> None:
        """Add an event; the same error of the same writer is one, unless it trained on in between."""
        if key in self.events and not self.events[key].survived:
            return
        self.events.pop(key, None)  # so that the new one is the last
        self.events[key] = event
        if not event.follows:
            self.live.setdefault(key[0], []).append(key)
        if len(self.events) >= 2 * self._most:
            self.make_room()

    def survive(self, writer: Writer) -> None:
        """Mark the errors of a writer that reported a loss: they did not end its run."""
        for key in self.live.pop(writer):
            if key in self.events:
                self.events[key] = replace(self.events[key], survived=True)

    def make_room(self) -> None:
        """Leave `most` events: the ones that can least be the first cause go, of survived ones the oldest first."""
        age = {key: number for number, key in enumerate(self.events)}

        def order(key: Key) -> tuple[bool, bool, bool, int]:
            event = self.events[key]
            return not event.survived, not event.follows, event.kind != "line", age[key] * (1 if event.survived else -1)

        for key in sorted(self.events, key=order)[: max(0, len(self.events) - self._most)]:
            del self.events[key]
            self.more += 1
