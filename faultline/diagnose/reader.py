"""Reads the events of a log: tracebacks, aborts, signals, errors without a traceback, timeouts."""

import math
import re
from collections import deque
from dataclasses import dataclass, field, replace

from faultline.base.text import one_line
from faultline.diagnose import signs
from faultline.diagnose.events import TIMEOUT, WRAPPERS, Event, EventBuffer, Events, Writer
from faultline.diagnose.lines import Line

MOST = 400  # events of a log that are remembered
ENOUGH = 100_000  # lines that matter, after which only tracebacks count; after twice as many, nothing
QUIET = 10_000  # lines of other writers, after which an event that was begun has ended
STREAMS = 256  # writers whose lines are read apart
FRAMES = 60  # last lines of a traceback
PATIENCE = 400  # lines within a traceback before its end is given up
MESSAGE = 24  # lines of a message

_ENDS_MESSAGE = re.compile(
    r"^\s*$|\d%\||^During handling of|^The above exception|^[-=]{20}|^\{'|^wandb: |^```|^\"{3}$|^'{3}$|"
    r"^ *[\]}],?$|^ *\"[\w.@-]{1,80}\" ?:|^ *\+-"  # JSON that is printed over several lines, groups of exceptions
)
_FIELD = re.compile(r"^\t|^[a-z][\w ]{1,60}:(?: \{.*)?$")  # ``saved metadata: {'shape': ...}``
THROWN_BY_NCCL = "c10::DistBackendError"  # whose message, a line of its own, may be cut off
WRAPPED = 30  # characters of a line's message that may have been wrapped


@dataclass
class _Open:
    """An event whose end hasn't come yet."""

    kind: str
    line: Line
    type: str = ""
    message: list[str] = field(default_factory=list)
    frames: deque[str] = field(default_factory=lambda: deque(maxlen=FRAMES))
    base: int = 0
    seen: int = 0
    last: int = 0


class EventReader:
    """Takes a log's lines one by one and collects its events; each writer's lines are read apart."""

    def __init__(self) -> None:
        self._open: dict[Writer, _Open] = {}
        self._buffer = EventBuffer(MOST)
        self._root: tuple[float, int] | None = None
        self._summary_at: tuple[str, int, float] = ("", 0, math.inf)
        self._spent = self._quiet = 0
        self._raised_in: dict[Writer, int] = {}  # writers whose next error was raised in a chain, and which

    @property
    def busy(self) -> bool:
        """Whether the next line counts, whatever is in it: it may belong to an event that was begun."""
        return bool(self._open)

    @property
    def words(self) -> str:
        """The pattern of the lines that can still change anything: a loss, while it would show that an error was
        survived; only tracebacks after many lines that mattered, and nothing after twice as many."""
        if self._spent >= 2 * ENOUGH:
            return ""
        words = re.escape(signs.TRACEBACK) if self._tired else signs.ERRORS
        return f"{words}|{signs.PROGRESS.pattern}" if self._buffer.live else words

    @property
    def _tired(self) -> bool:
        return self._spent >= ENOUGH

    def take(self, line: Line) -> None:
        """Read the next line."""
        if self._spent >= 2 * ENOUGH:
            self._close_all()
            return
        writer = line.file, line.stream
        if writer not in self._open and len(self._open) >= STREAMS:
            writer = line.file, ""
        event = self._open.get(writer)
        if event and (self._message(writer, event, line) if event.type else self._frame(writer, event, line)):
            self._spent, self._quiet = self._spent + 1, 0
            return
        self._quiet += bool(self._open)
        if self._quiet > QUIET:
            self._close_all()
        if self._matters(line):
            self._spent += 1
            self._begin(writer, line)

    def _matters(self, line: Line) -> bool:
        """Whether a line may begin an event, or show that others were survived."""
        if not signs.MATTERS.search(line.text):
            return False
        if signs.PROGRESS.search(line.text):
            return (line.file, line.stream) in self._buffer.live
        return not self._tired or signs.TRACEBACK in line.text

    def events(self) -> Events:
        """All events, once the log has ended."""
        self._close_all()
        self._buffer.make_room()
        events = self._buffer.events.values()
        watched = any(event.type == TIMEOUT for event in events)
        thrown = any(event.kind == "abort" for event in events)
        heads = {_chain_of(e) for e in events if e.chain == e.number and e.follows and e.name not in WRAPPERS}

        def explained(event: Event) -> bool:
            """Whether it is a watchdog's abort or a C++ exception's, or was raised while a consequence was handled."""
            aborted = event.type == "SIGABRT" and (watched or thrown)
            aborted = aborted or (event.type == THROWN_BY_NCCL and not event.message and watched)
            return aborted or (event.chain != event.number and _chain_of(event) in heads)

        every = tuple(replace(event, explained=explained(event)) for event in events)
        return Events(every, self._root[1] if self._root else None, self._buffer.more, self._tired)

    def _begin(self, writer: Writer, line: Line) -> None:
        text = line.text
        if signs.PROGRESS.search(text):
            self._buffer.survive((line.file, line.stream))
        elif signs.RAISED_IN.search(text):
            self._chain((line.file, line.stream))
        elif signs.TRACEBACK in text and "Exception ignored in" not in text:
            self._open[writer] = _Open("error", line)
        elif signs.FRAME.match(text):  # of a traceback whose head was cut off
            self._open[writer] = _Open("error", line, base=max(0, signs.indent(text) - 2), frames=deque([text], FRAMES))
        elif match := signs.THROWN.search(text):
            self._open[writer] = _Open("abort", line, match[1], last=line.number)
        elif match := signs.WHAT.search(text):
            self._open[writer] = _Open("abort", line, "C++ exception", [match[1]], last=line.number)
        elif self._summary(line) or self._signal(line):
            pass
        elif error := signs.error_within(text):
            kind, message = error
            self._open[writer] = _Open("line", line, kind, [message], last=line.number)
            # Where it is all that is left of a traceback, its message may go on.
            if message and not text.lstrip().startswith(kind):
                self._close(writer)

    def _chain(self, writer: Writer) -> None:
        """The next error of a writer was raised while its last one was handled."""
        for key, event in reversed(self._buffer.events.items()):
            if key[0] == writer and len(self._raised_in) < STREAMS:
                self._buffer.events[key] = replace(event, chain=event.chain or event.number)
                self._raised_in[writer] = event.chain or event.number
                break

    def _frame(self, writer: Writer, event: _Open, line: Line) -> bool:
        """Read a line within a traceback; the one that names the error begins the message. False if it is given up."""
        text, event.seen = line.text[: signs.LONGEST], event.seen + 1
        if event.seen > PATIENCE:
            self._open.pop(writer)
            return False
        if signs.TRACEBACK in text:  # of another rank, where no prefix names the ranks
            return True
        if text.lstrip().startswith("File ") and not any("File " in frame for frame in event.frames):
            event.base = max(0, signs.indent(text) - 2)
        error = None
        if text.strip() and signs.indent(text) <= event.base:
            error = signs.final(text.strip(), bool(event.frames)) or signs.error_within(text)
        if error:
            event.type, event.last = error[0], line.number
            event.message.append(error[1])
        elif text.strip():
            event.frames.append(text[event.base :])
        return True

    def _message(self, writer: Writer, event: _Open, line: Line) -> bool:
        """Read a further line of a message; False where it is none."""
        text = line.text[: signs.LONGEST]
        if event.kind == "abort" and (match := signs.WHAT.search(text)):
            event.message.append(match[1])
            return True
        ends = (
            len(event.message) >= (2 if event.kind == "line" and not event.message[0] else MESSAGE)
            or (event.kind == "line" and event.message[0] and not _continues(event.message[-1], text))
            or _ENDS_MESSAGE.search(text)
            or (line.dated and not event.line.dated)
            or signs.TRACEBACK in text
            or signs.final(text, frames=False)
            or signs.ended(text)
            or signs.THROWN.search(text)
        )
        if ends:
            self._close(writer)
            return False
        event.message.append(text.strip())
        return True

    def _close_all(self) -> None:
        self._quiet = 0
        for writer in [*self._open]:
            self._close(writer)

    def _close(self, writer: Writer) -> None:
        event = self._open.pop(writer)
        if event.type:
            message = signs.FURNITURE.sub("", "\n".join(event.message)).strip()[: 4 * signs.LONGEST]
            rank = signs.rank(message) if event.kind == "abort" else None
            self._add(event.kind, event.type, message, event.line, event.last, rank, "\n".join(event.frames))

    def _signal(self, line: Line) -> bool:
        """A process that a signal ended."""
        name, text = signs.ended(line.text), line.text[: signs.LONGEST]
        if name:
            self._add("signal", name, one_line(text), line, line.number, signs.rank(text))
        return bool(name)

    def _summary(self, line: Line) -> bool:
        """A launcher's table of what ended: it names the rank that it saw fail first, and when that was."""
        text = line.text.strip()
        file, number, time = self._summary_at
        if text.startswith(signs.ROOT):
            self._summary_at = line.file, line.number, math.inf
        elif (match := signs.SUMMARY.match(text)) and file == line.file and 0 < line.number - number <= 6:
            if match["key"] == "time":
                self._summary_at = file, number, signs.moment(match["value"]) or math.inf
            elif match["value"].isdigit():
                root = time, int(match["value"])
                self._root = root if not self._root or root[0] < self._root[0] else self._root
        elif signs.WATCHDOG.search(text):
            self._add("line", TIMEOUT, one_line(text)[: signs.LONGEST], line, line.number, signs.rank(text))
        else:
            return False
        return True

    def _add(
        self, kind: str, type: str, message: str, line: Line, last: int, rank: int | None, frames: str = ""
    ) -> None:
        writer = line.file, line.stream
        rank = line.rank if line.rank is not None else rank
        chain = self._raised_in.pop(writer, 0) if kind == "error" else 0
        place = line.file, line.number, last
        event = Event(kind, type, message, *place, rank, line.stream, frames, time=signs.moment(line.time), chain=chain)
        key = writer, type if kind == "signal" else event.headline if kind == "line" else event.text
        self._buffer.add(key, event)


def _continues(before: str, text: str) -> bool:
    """Whether a line can only be more of a message: it is one of its fields, or goes on within a sentence."""
    broken_off = len(before) > WRAPPED and before[-1:].isalpha() and text[:1].islower()
    return broken_off or bool(_FIELD.search(text))


def _chain_of(event: Event) -> tuple[str, str, int]:
    return event.file, event.stream, event.chain
