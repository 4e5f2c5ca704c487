"""Reads events from a log's lines: tracebacks, aborts, signals, errors without a traceback, timeouts."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from faultline.events import Event, Found
from faultline.logs import TRACEBACK, Line
from faultline.oracle import signal_name
from faultline.report import one_line

MOST = 400  # events that are kept of a log
ENOUGH = 100_000  # lines that are looked at after an error that explains the end
STREAMS = 256  # writers whose lines are told apart
FRAMES = 60  # last lines of a traceback that are kept
PATIENCE = 400  # lines within a traceback before its end is given up
MESSAGE = 24  # lines of a message
LONGEST = 1000  # characters of a line that are kept

# A line without one of these says nothing of a failure; most lines of a log are such. Each begins with a letter of its
# own, which is what makes the search fast; a colour may be within any word.
TELLING = (
    rb"Traceback|Error|Exception|Interrupt|Fatal|terminate called|what\(\):|Watchdog|watchdog|exit ?code|return code|"
    rb"SIG|Signal|signal|File \"|Killed|Aborted|core dumped|Bus error|Out of memory|out of memory|oom-kill|oom_kill|"
    rb"OOMKilled|Root Cause|rank +:|\x1b|\\u001b"
)
LOSS = rb"'loss'|\"loss\""
_TELLS = re.compile(
    r"Traceback \(|Error|Exception|Interrupt|Fatal|terminate called|what\(\):|[Ww]atchdog|exit ?code|return code|"
    r"SIG[A-Z]|[Ss]ignal|^ *File \"|Killed|Aborted|Bus error|core dumped|ut of memory|oom[-_]kill|OOMKilled|Root Cause|"
    r"^ *rank +:|'loss'|\"loss\""
)
_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*")
_NAMED_LIKE_ERRORS = ("Error", "Exception", "Interrupt", "Exit", "Iteration", "Failed", "Timeout", "Warning")
_LEVELS = ("DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL")
_ENDS_MESSAGE = re.compile(r"^\s*$|\d%\||^During handling of|^The above exception|^[-=]{20}|^\{'|^wandb: |^```")
_PROGRESS = re.compile(r"['\"]loss['\"]: ")
_CODE = re.compile(r"exit ?code *[:=]? *-(\d{1,2})\b|return code *= *-(\d{1,2})\b|\b[Ss]ignal (\d{1,2}) \(SIG")
_SIGNAL = re.compile(r"Signals\.(SIG[A-Z]{2,6})|closing signal (SIG[A-Z]{2,6})|^Received (SIG[A-Z]{2,6})")
_SHELL = re.compile(r"(?:^|\d |python3? ?)(Killed|Aborted|Segmentation fault|Bus error)(?:\s|$)")
_SHELL_SIGNALS = {"Killed": "SIGKILL", "Aborted": "SIGABRT", "Segmentation fault": "SIGSEGV", "Bus error": "SIGBUS"}
_OUT_OF_MEMORY = re.compile(r"Out of memory: Kill|oom[-_]kill|OOMKilled")
_FATAL = re.compile(r"Fatal Python error: (.*)")
_WHAT = re.compile(r"what\(\): *(.*)")
_THROWN = re.compile(r"terminate called after throwing an instance of '([^']{1,200})'")
_FRAME = re.compile(r' *File "[^"]{1,400}", line \d{1,6}')
_RANK = re.compile(r"\b[Rr]ank[ =:](\d{1,5})\b")


Writer = tuple[str, str]
"""A file, and the name of who wrote a line of it; empty where no prefix tells."""


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


class Reader:
    """Takes a log's lines one by one and keeps what went wrong; each writer's lines are read on their own."""

    def __init__(self) -> None:
        self._open: dict[Writer, _Open] = {}
        self._events: list[Event] = []
        self._known: set[tuple[Writer, str]] = set()
        self._more = 0
        self._root: int | None = None
        self._in_summary = 0
        self._left = ENOUGH
        self._live: set[Writer] = set()  # writers of errors that were not survived yet

    @property
    def busy(self) -> bool:
        """Whether the next line counts, whatever is in it: it may belong to what was begun."""
        return bool(self._open)

    @property
    def waits(self) -> bool:
        """Whether a loss would say that an error was survived."""
        return bool(self._live)

    @property
    def full(self) -> bool:
        """Whether no line can change anything any more."""
        return self._left <= 0

    def take(self, line: Line) -> bool:
        """Read the next line; whether it told anything."""
        if self._live:
            self._left -= 1
        if self.full:
            self._open.clear()
            return False
        writer = line.file, line.stream
        if writer not in self._open and len(self._open) >= STREAMS:
            writer = line.file, ""
        now = self._open.get(writer)
        if now and (self._frame(writer, now, line) if not now.type else self._said(writer, now, line)):
            return True
        if not _TELLS.search(line.text):
            return False
        self._begin(writer, line)
        return True

    def found(self) -> Found:
        """Everything, when the log has ended."""
        for writer in [*self._open]:
            self._close(writer)
        return Found(tuple(self._events), self._root, self._more)

    def _begin(self, writer: Writer, line: Line) -> None:
        text = line.text
        if _PROGRESS.search(text):
            if (line.file, line.stream) in self._live:
                self._survive((line.file, line.stream))
        elif TRACEBACK in text and "Exception ignored in" not in text:
            self._open[writer] = _Open("error", line)
        elif _FRAME.match(text):  # of a traceback whose head was cut off
            self._open[writer] = _Open("error", line, base=max(0, _indent(text) - 2), frames=deque([text], FRAMES))
        elif match := _THROWN.search(text):
            self._open[writer] = _Open("abort", line, match[1], last=line.number)
        elif match := _WHAT.search(text):
            self._open[writer] = _Open("abort", line, "C++ exception", [match[1]], last=line.number)
        elif self._summary(line) or self._signal(line):
            pass
        elif told := _error_within(text):
            self._open[writer] = _Open("line", line, told[0], [told[1]], last=line.number)

    def _survive(self, writer: Writer) -> None:
        """A writer reported a loss: what it told before didn't end its run."""
        self._live.discard(writer)
        self._events = [
            replace(e, survived=True) if (e.file, e.stream) == writer and not e.follows else e for e in self._events
        ]

    def _frame(self, writer: Writer, now: _Open, line: Line) -> bool:
        """A line within a traceback; the one that names the error begins the message."""
        text, now.seen = line.text[:LONGEST], now.seen + 1
        if now.seen > PATIENCE:
            self._open.pop(writer)
            return False
        if TRACEBACK in text:  # of another rank, where no prefix tells the ranks apart
            return True
        if text.lstrip().startswith("File ") and not any("File " in frame for frame in now.frames):
            now.base = max(0, _indent(text) - 2)
        if (
            text.strip()
            and _indent(text) <= now.base
            and (told := _final(text.strip(), bool(now.frames)) or _error_within(text))
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
            len(now.message) >= MESSAGE
            or _ENDS_MESSAGE.search(text)
            or (line.dated and not now.line.dated)
            or TRACEBACK in text
            or _final(text, frames=False)
            or _CODE.search(text)
            or _THROWN.search(text)
        )
        if ends:
            self._close(writer)
            return False
        now.message.append(text.strip())
        return True

    def _close(self, writer: Writer) -> None:
        now = self._open.pop(writer)
        if not now.type:
            return
        message = "\n".join(now.message).strip()[: 4 * LONGEST]
        rank = now.line.rank
        if rank is None and now.kind == "abort" and (match := _RANK.search(message)):
            rank = int(match[1])
        frames = "\n".join(now.frames)
        place = (now.line.file, now.line.number, now.last)
        self._add(Event(now.kind, now.type, message, *place, rank, now.line.stream, frames))

    def _signal(self, line: Line) -> bool:
        """A process that a signal ended, as shells, kernels and launchers word it."""
        text = line.text[:LONGEST]
        name, kind = "", "signal"
        if match := _SIGNAL.search(text):
            name = match[1] or match[2] or match[3]
        elif match := _CODE.search(text):
            name = signal_name(int(match[1] or match[2] or match[3]))
        elif match := _SHELL.search(text):
            name = _SHELL_SIGNALS[match[1]]
        elif match := _FATAL.search(text):
            name = _SHELL_SIGNALS.get(match[1].strip(), "SIGABRT")
        elif _OUT_OF_MEMORY.search(text):
            name = "SIGKILL"
        if not name:
            return False
        rank = line.rank
        if rank is None and (match := _RANK.search(text)):
            rank = int(match[1])
        self._add(Event(kind, name, one_line(text), line.file, line.number, line.number, rank, line.stream))
        return True

    def _summary(self, line: Line) -> bool:
        """A launcher's table of what ended: it names the rank that it saw fail first."""
        text = line.text.strip()
        if text.startswith("Root Cause"):
            self._in_summary = line.number
        elif text.startswith("rank ") and line.number - self._in_summary <= 6 and self._root is None:
            if match := re.match(r"rank +: (\d{1,5})\b", text):
                self._root = int(match[1])
        elif "Watchdog caught" in text or "watchdog caught" in text:
            rank = line.rank
            if rank is None and (match := _RANK.search(text)):
                rank = int(match[1])
            place = (line.file, line.number, line.number)
            self._add(Event("line", "timeout", one_line(text)[:LONGEST], *place, rank, line.stream))
        else:
            return False
        return True

    def _add(self, event: Event) -> None:
        """Keep an event; the same words of the same writer are one."""
        writer = event.file, event.stream
        key = writer, event.type if event.kind == "signal" else event.text
        if key in self._known:
            return
        if len(self._events) >= MOST:
            self._more += 1
            return
        self._known.add(key)
        self._events.append(event)
        if not event.follows:
            self._live.add(writer)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())


def _final(text: str, frames: bool) -> tuple[str, str] | None:
    """Type and message of the line that ends a traceback; without frames only a type that is named like errors."""
    kind, colon, said = text.partition(":")
    if len(kind) > 200 or not _TYPE.fullmatch(kind) or kind in _LEVELS:
        return None
    like_an_error = kind.endswith(_NAMED_LIKE_ERRORS) and not kind.endswith("Warning")
    if colon and said[:1] not in ("", " "):
        return None
    if like_an_error or (
        frames and colon and not re.match(r" +\d{1,3}%", said) and kind.rpartition(".")[2][1:2].islower()
    ):
        return kind, said.strip()
    return None


def _error_within(text: str) -> tuple[str, str] | None:
    """Type and message of an error that a line tells without a traceback: ``Type: message``, or as Python's repr."""
    text = text[: 4 * LONGEST]
    for word in ("Error:", "Exception:", "Error :", "Error('", 'Error("'):
        at = text.find(word)
        name = at + len(word.rstrip(" :('\""))
        before = text[max(0, name - 120) : name]
        if at < 0 or "Exception ignored in" in text or re.search(r"\b(?:except|raise) [\w.]*$", before):
            continue
        match = re.search(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*$", before)
        said = text[at + len(word) :]
        if match and (word[-1] != ":" or said[:1] in ("", " ")):
            return match[0], said.strip().removesuffix(")").rstrip("'\"") if word[-1] in "'\"" else said.strip()
    return None


def read(lines: Iterable[Line]) -> Found:
    """The events of a log."""
    reader = Reader()
    for line in lines:
        reader.take(line)
    return reader.found()
