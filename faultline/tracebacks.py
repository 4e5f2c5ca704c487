"""Reads events from a log's lines: tracebacks, aborts, signals, errors without a traceback, timeouts."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from faultline import clues
from faultline.clues import LONGEST
from faultline.events import TIMEOUT, WRAPPERS, Event, Found
from faultline.kept import Kept, Key, Writer
from faultline.logs import TRACEBACK, Line
from faultline.report import one_line

MOST = 400  # events that are kept of a log
ENOUGH = 100_000  # lines that may tell something, after which only tracebacks count; after twice as many, nothing
QUIET = 10_000  # lines of others, after which an event that was begun has ended
STREAMS = 256  # writers whose lines are told apart
FRAMES = 60  # last lines of a traceback that are kept
PATIENCE = 400  # lines within a traceback before its end is given up
MESSAGE = 24  # lines of a message
KINDS = 4096  # of lines that are told apart

_ENDS_MESSAGE = re.compile(
    r"^\s*$|\d%\||^During handling of|^The above exception|^[-=]{20}|^\{'|^wandb: |^```|^\"{3}$|^'{3}$|"
    r"^ *[\]}],?$|^ *\"[\w.@-]{1,80}\" ?:|^ *\+-"  # JSON that is printed over several lines, groups of exceptions
)
# Lines that begin something, or that say something of other lines.
_MORE_THAN_ITSELF = re.compile(
    r"Traceback|File \"|During handling|The above exception|terminate called|what\(\):|Root Cause|rank +:|time +:|"
    r"Watchdog|watchdog|loss['\"]|grad_norm"
)
_ONE_DIGIT = str.maketrans("123456789", "000000000")
_PROGRESS = re.compile(r"['\"]loss['\"]: ")
_WHAT = re.compile(r"what\(\): *(.*)")
_THROWN = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")
_FRAME = re.compile(r' *File "[^"]{1,400}", line \d{1,6}')
_RAISED_IN = re.compile(r"^ *(?:During handling of the above exception|The above exception was the direct cause)")
_SUMMARY = re.compile(r"(?P<key>time|rank) +: (?P<value>[\w:.+-]{1,40})")


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
    chain: int = 0


class Reader:
    """Takes a log's lines one by one and keeps what went wrong; each writer's lines are read on their own."""

    def __init__(self) -> None:
        self._open: dict[Writer, _Open] = {}
        self._kept = Kept(MOST)
        self._root: tuple[float, int] | None = None
        self._kinds: dict[Key, list[Any]] = {}  # lines without their digits: how many of them there were, the first one
        self._summary_at: tuple[str, int, float] = ("", 0, math.inf)
        self._spent = self._quiet = 0
        self._raised_in: dict[Writer, int] = {}  # writers whose next error was raised in a chain, and which

    @property
    def busy(self) -> bool:
        """Whether the next line counts, whatever is in it: it may belong to what was begun."""
        return bool(self._open)

    @property
    def waits(self) -> bool:
        """Whether a loss would say that an error was survived."""
        return bool(self._kept.live)

    @property
    def tired(self) -> bool:
        """Whether so many lines told something that only tracebacks count from now on."""
        return self._spent >= ENOUGH

    @property
    def full(self) -> bool:
        """Whether no line can change anything any more."""
        return self._spent >= 2 * ENOUGH

    def take(self, line: Line) -> bool:
        """Read the next line; whether it told anything."""
        if self.full:
            self._close_all()
            return False
        writer = line.file, line.stream
        if writer not in self._open and len(self._open) >= STREAMS:
            writer = line.file, ""
        now = self._open.get(writer)
        if now and (self._frame(writer, now, line) if not now.type else self._said(writer, now, line)):
            self._spent, self._quiet = self._spent + 1, 0
            return True
        self._quiet += bool(self._open)
        if self._quiet > QUIET:
            self._close_all()
        if not self._tells(line):
            return False
        self._spent += 1
        self._begin(writer, line)
        if not self._open and len(line.text) <= LONGEST and not _MORE_THAN_ITSELF.search(line.text):
            if len(self._kinds) >= KINDS:
                self._kinds.clear()
            self._kinds.setdefault(_kind(line), [0, line.text])[0] += 1
        return True

    def stale(self, line: Line) -> bool:
        """Whether as many lines as may be kept told the same as this one, but for digits; it then counts as read.

        Once errors were survived, all lines are looked at anew.
        """
        if self._open or len(line.text) > LONGEST or (like := self._kinds.get(_kind(line), (0, "")))[0] < MOST:
            return False
        self._spent += 1
        self._kept.more += line.text != like[1]
        return True

    def _tells(self, line: Line) -> bool:
        """Whether a line may begin an event, or say that others were survived."""
        if not clues.telling(line.text):
            return False
        if _PROGRESS.search(line.text):
            return (line.file, line.stream) in self._kept.live
        return not self.tired or TRACEBACK in line.text

    def found(self) -> Found:
        """Everything, when the log has ended."""
        self._close_all()
        events = self._kept.events.values()
        waited = any(event.type == TIMEOUT or event.kind == "abort" for event in events)
        heads = {_chain_of(e) for e in events if e.chain == e.number and e.follows and e.name not in WRAPPERS}
        explained = [
            # The watchdog aborts its process, and so does every C++ exception; and what is raised while a consequence
            # is handled is one as well.
            replace(e, explained=(e.type == "SIGABRT" and waited) or (_chain_of(e) in heads and e.chain != e.number))
            for e in events
        ]
        return Found(tuple(explained), self._root[1] if self._root else None, self._kept.more, self.tired)

    def _begin(self, writer: Writer, line: Line) -> None:
        text = line.text
        if _PROGRESS.search(text):
            self._kinds.clear()
            self._kept.survive((line.file, line.stream))
        elif _RAISED_IN.search(text):
            self._chain((line.file, line.stream))
        elif TRACEBACK in text and "Exception ignored in" not in text:
            self._open[writer] = _Open("error", line)
        elif _FRAME.match(text):  # of a traceback whose head was cut off
            self._open[writer] = _Open("error", line, base=max(0, clues.indent(text) - 2), frames=deque([text], FRAMES))
        elif match := _THROWN.search(text):
            self._open[writer] = _Open("abort", line, match[1], last=line.number)
        elif match := _WHAT.search(text):
            self._open[writer] = _Open("abort", line, "C++ exception", [match[1]], last=line.number)
        elif self._summary(line) or self._signal(line):
            pass
        elif told := clues.error_within(text):
            self._open[writer] = _Open("line", line, told[0], [told[1]], last=line.number)
            if told[1]:  # what comes next is another message, as far as anybody can tell
                self._close(writer)

    def _chain(self, writer: Writer) -> None:
        """The next error of a writer was raised while its last one was handled."""
        for key, event in reversed(self._kept.events.items()):
            if key[0] == writer and len(self._raised_in) < STREAMS:
                self._kept.events[key] = replace(event, chain=event.chain or event.number)
                self._raised_in[writer] = event.chain or event.number
                break

    def _frame(self, writer: Writer, now: _Open, line: Line) -> bool:
        """A line within a traceback; the one that names the error begins the message."""
        text, now.seen = line.text[:LONGEST], now.seen + 1
        if now.seen > PATIENCE:
            self._open.pop(writer)
            return False
        if TRACEBACK in text:  # of another rank, where no prefix tells the ranks apart
            return True
        if text.lstrip().startswith("File ") and not any("File " in frame for frame in now.frames):
            now.base = max(0, clues.indent(text) - 2)
        if (
            text.strip()
            and clues.indent(text) <= now.base
            and (told := clues.final(text.strip(), bool(now.frames)) or clues.error_within(text))
        ):
            now.type, now.last = told[0], line.number
            now.message.append(told[1])
        elif text.strip():
            now.frames.append(text[now.base :])
        return True

    def _said(self, writer: Writer, now: _Open, line: Line) -> bool:
        """A further line of a message; False where it is none."""
        text = line.text[:LONGEST]
        if now.kind == "abort" and (match := _WHAT.search(text)):
            now.message.append(match[1])
            return True
        ends = (
            len(now.message) >= (2 if now.kind == "line" else MESSAGE)
            or _ENDS_MESSAGE.search(text)
            or (line.dated and not now.line.dated)
            or TRACEBACK in text
            or clues.final(text, frames=False)
            or clues.ended(text)
            or _THROWN.search(text)
        )
        if ends:
            self._close(writer)
            return False
        now.message.append(text.strip())
        return True

    def _close_all(self) -> None:
        self._quiet = 0
        for writer in [*self._open]:
            self._close(writer)

    def _close(self, writer: Writer) -> None:
        now = self._open.pop(writer)
        if not now.type:
            return
        message = "\n".join(now.message).strip()[: 4 * LONGEST]
        rank = clues.rank(message) if now.kind == "abort" else None
        self._add(now.kind, now.type, message, now.line, now.last, rank, "\n".join(now.frames))

    def _signal(self, line: Line) -> bool:
        """A process that a signal ended."""
        if not (name := clues.ended(line.text)):
            return False
        self._add("signal", name, one_line(line.text[:LONGEST]), line, line.number, clues.rank(line.text[:LONGEST]))
        return True

    def _summary(self, line: Line) -> bool:
        """A launcher's table of what ended: it names the rank that it saw fail first, and when that was."""
        text = line.text.strip()
        file, number, time = self._summary_at
        if text.startswith("Root Cause"):
            self._summary_at = line.file, line.number, math.inf
        elif (match := _SUMMARY.match(text)) and file == line.file and 0 < line.number - number <= 6:
            if match["key"] == "time":
                self._summary_at = file, number, clues.moment(match["value"]) or math.inf
            elif match["value"].isdigit():
                root = time, int(match["value"])
                self._root = root if not self._root or root[0] < self._root[0] else self._root
        elif "Watchdog caught" in text or "watchdog caught" in text:
            self._add("line", TIMEOUT, one_line(text)[:LONGEST], line, line.number, clues.rank(text))
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
        event = Event(kind, type, message, *place, rank, line.stream, frames, time=clues.moment(line.time), chain=chain)
        key = writer, type if kind == "signal" else event.text
        self._kept.add(key, event)


def _kind(line: Line) -> Key:
    return (line.file, line.stream), line.text.translate(_ONE_DIGIT)


def _chain_of(event: Event) -> tuple[str, str, int]:
    return event.file, event.stream, event.chain


def read(lines: Iterable[Line]) -> Found:
    """The events of a log."""
    reader = Reader()
    for line in lines:
        reader.take(line)
    return reader.found()
