"""The lines of a log, whatever its bytes are: plain text without prefixes, with rank and writer, in bounded memory."""

import codecs
import json
import os
import re
import stat
import string
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO, NamedTuple

from faultline.base.errors import UsageError
from faultline.base.text import STDIN, plain

LAYERS = 6  # prefixes that may stand before a line, one behind the other

_BOX = "╭╮╰╯┌┐└┘├┤│┃║─━═┏┓┗┛"
_LEVEL = "(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_NAME = r"(?=[a-z][a-z.-]{0,40}\d)[a-z][\w.-]{0,60}"  # with a digit in it

# By the group that names its meaning; every repetition is bounded or followed by what it can't hold itself, so each
# takes time in proportion to the line.
_FORMS = (
    r"\[(?:local_?)?(?:rank|default|trainer|worker|gpu)[ _:]?(?P<rank>\d{1,5})\]:? ?",  # [rank0]:
    r"\[(?P<number>\d{1,5})\]:(?= ?\S) ?",  # [0]:
    r" {0,4}(?P<srun>\d{1,5}): ",  # 0:
    r"\[\d{1,5},(?:mpirank:)?(?P<mpi>\d{1,5})(?:,[\w.-]{1,60})?\](?:<std(?:out|err)>)?:?",  # [1,0]<stderr>:
    r"\((?P<actor>[\w.<>:-]{1,60}(?: [\w.-]{1,40})? (?:pid|rank)=\d{1,9}(?:, ip=[\w.:]{1,60})?)\) ?",  # (Worker pid=1)
    rf"(?P<host>{_NAME}|\d{{1,3}}(?:\.\d{{1,3}}){{3}}): ",  # node1:
    rf"(?P<service>{_NAME}) {{1,8}}\| ",  # trainer-1 |
    r"(?P<time>\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?: [-|])?:? ?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\](?: [-|])? ?"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d "  # syslog
    r"|\[ {0,9}\d{1,9}\.\d{3,9}\] "  # the kernel
    r"|\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d[.\d]{0,10} {1,4}(?:\d{1,9} )?[\w./+-]{1,200}:\d{1,6}\] )",  # glog
    rf"(?P<level>\[{_LEVEL}\][ :-]{{0,3}}"
    rf"|{_LEVEL} {{0,5}}[|:-] ?"
    rf"|\[{_LEVEL}\|[\w.:/-]{{1,120}}\] ?"
    r"|\[[\w./-]{1,80}:\d{1,6}(?::\w{1,60})?\] "  # [engine.py:12:train]
    r"|std(?:err|out) [FP] )",  # Kubernetes
    r"(?P<quote>> )",
    r"(?P<group> {2,12}[+|] )",  # of exceptions
)
PREFIX = re.compile("|".join(_FORMS), re.IGNORECASE)
_RICH = re.compile(r"^ *(?:❱ )?([\w/~.<-][\w/~.<>+-]{0,300}\.py):(\d{1,6}) in (<?\w{1,80}>?)$")  # a frame in a box
_FIRST = frozenset("[(> " + string.ascii_letters + string.digits)  # with which any of them begins
CHUNK = 1 << 18  # bytes that are read at a time
WIDTH = 1 << 16  # bytes of a line of JSON that are read; the rest is dropped
PLAIN = 1 << 13  # the same of any other line
HEAD = 1 << 10  # bytes that show the encoding
GZIP = b"\x1f\x8b"

_STEERS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and the moves of several progress bars
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\x08\x1b"})

# The names that log collectors give to a line, its time, and who wrote it.
_TEXT = ("message", "log", "msg", "textPayload", "MESSAGE")
_WHEN = ("timestamp", "@timestamp", "time")
_WHO = ("rank", "pod_name", "pod", "hostname", "host")
_HOLDS = re.compile(r"\\n|\\u001b|\"(?:message|log|msg|textPayload|MESSAGE)\" ?:")
_MEMBER = re.compile(r'"[\w.@-]{1,80}" ?: ?"')  # of an object that stands in several lines


def bare(text: str) -> tuple[str, int | None, str, bool, str]:
    """A line's text without prefixes, the rank and the writer that they name, whether it is dated, and its time."""
    rank, names, dated, time, at = None, "", False, "", 0
    for _ in range(LAYERS):
        match = PREFIX.match(text, at) if text[at : at + 1] in _FIRST else None
        if not match:
            break
        kind = match.lastgroup or ""
        if kind in ("rank", "number", "srun", "mpi"):
            rank = int(match[kind])
        elif kind in ("actor", "host", "service"):
            names += f"{match[kind]} "
        elif kind in ("time", "level"):
            dated, time = True, time or (match["time"] or "")
        at = match.end()
    text = text[at:]
    if text and text[0] in _BOX:
        text = "  " + text.strip(_BOX + " ")  # indented, as all lines of a traceback but the last
    if ".py:" in text:
        text = _RICH.sub(r'  File "\1", line \2, in \3', text)
    if rank is not None:
        names += f"rank {rank}"
    return text.rstrip(), rank, names.strip(), dated, time.strip()


class Line(NamedTuple):  # of which there may be many millions
    """One line of a log: `number` counts line feeds from 1, `text` has neither prefixes nor control characters.

    `stream` is the writer that prefixes name, `rank` its rank; `dated` says that the line began with a time or a
    level, and so is a new message; `time` is that time as it was written.
    """

    file: str
    number: int
    text: str
    rank: int | None = None
    stream: str = ""
    dated: bool = False
    time: str = ""


Wanted = Callable[[], "re.Pattern[bytes] | None"]
"""The pattern of the lines that count at the moment when it is called; None where every line counts."""


def read(files: Sequence[str], wanted: Wanted = lambda: None, binary: list[str] | None = None) -> Iterator[Line]:
    """The lines of files, one behind the other; ``-`` is standard input. Raises UsageError for an unreadable file.

    `binary` gets the names of the files that are no text, see `lines`.
    """
    for name in files:
        if name == STDIN:
            yield from lines("standard input", sys.stdin.buffer, wanted, binary)
            continue
        try:
            with open(name, "rb") as stream:
                if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode) and not stream.isatty():
                    raise OSError("it is a device")
                yield from lines(name, stream, wanted, binary)
        except OSError as error:
            advice = ""
            if name.startswith(("http://", "https://")):
                advice = "; nothing is downloaded: paste the text into a file, or pipe it in"
            elif isinstance(error, IsADirectoryError):
                advice = "; name the logs in it"
            elif " " in name:
                advice = "; the text of an error begins with its type, as in 'RuntimeError: ...'"
            raise UsageError(f"{plain(name)} can't be read: {error.strerror or error}{advice}") from None


def lines(
    name: str, stream: BinaryIO, wanted: Wanted = lambda: None, binary: list[str] | None = None
) -> Iterator[Line]:
    """The lines of one log that are wanted.

    Its name is added to `binary` if it begins with many control characters, in whichever encoding, as no log does.
    """
    first, parts = _first_piece(utf8(unzipped(iter(lambda: stream.read(CHUNK), b""))))
    if binary is not None and len(first) > 20 * len(first.translate(None, _CONTROLS)) // 19:
        binary.append(name)
    for number, raw in split(parts, wanted):
        for text in unwrapped(decoded(raw)):
            yield Line(name, number, *bare(text))


def _first_piece(parts: Iterable[bytes]) -> tuple[bytes, Iterator[bytes]]:
    """The first piece that isn't empty, and all pieces; without the mark of UTF-8."""
    rest = filter(None, parts)
    first = next(rest, b"").removeprefix(codecs.BOM_UTF8)
    return first, chain([first] if first else [], rest)


def unzipped(content: Iterable[bytes]) -> Iterator[bytes]:
    """The content of gzip members, known by their first bytes, else the bytes as they are; a torn member ends it."""
    first, parts = _first_piece(content)
    if not first.startswith(GZIP):
        yield from parts
        return
    inflate = zlib.decompressobj(31)
    for part in parts:
        while part:
            try:
                yield inflate.decompress(part, CHUNK)
            except zlib.error:
                return
            part = inflate.unconsumed_tail
            if inflate.eof:
                part = inflate.unused_data.lstrip(b"\0")
                inflate = zlib.decompressobj(31)
    yield inflate.flush()


def utf8(content: Iterable[bytes]) -> Iterator[bytes]:
    """UTF-16 as UTF-8; the rest is left for `decoded`."""
    first, parts = _first_piece(content)
    encoding = _utf16(first[:HEAD])
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    for part in parts:
        yield decoder.decode(part).encode("utf-8", "replace") if decoder else part


def _utf16(head: bytes) -> str:
    """The form of UTF-16 in which a text begins, by its mark or as every second byte is zero; empty if it doesn't."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    if head.startswith(codecs.BOM_UTF16_LE) or 10 * even < odd > len(head) // 4:
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE) or 10 * odd < even > len(head) // 4:
        return "utf-16-be"
    return ""


def split(content: Iterable[bytes], wanted: Wanted = lambda: None) -> Iterator[tuple[int, bytes]]:
    """The lines that are wanted, with their numbers and without their ends."""
    number, rest = 0, b""
    for part in content:
        ended, feed, rest = (rest + part).rpartition(b"\n")
        pattern = wanted()
        if pattern and not _has(pattern, ended):  # nor does any of its lines: most parts of a log end here
            number += (ended + feed).count(b"\n")
        else:
            for raw in ended.split(b"\n") if feed else ():
                number += 1
                line = _visible(raw)
                if not pattern or _has(pattern, line):
                    yield number, line
                    pattern = wanted()
        # What a carriage return at the end does, only the next piece shows.
        rest = _visible(rest) + (b"\r" if rest.endswith(b"\r") else b"")
    if (line := _visible(rest)) and (not (pattern := wanted()) or _has(pattern, line)):
        yield number + 1, line


def _visible(raw: bytes) -> bytes:
    """The beginning of what a line showed last, where carriage returns overwrite: more of it if it may be JSON."""
    if b"\r" in raw:
        raw = raw.rstrip(b"\r").rpartition(b"\r")[2]
    return raw[: WIDTH if raw.lstrip()[:1] in (b"{", b'"') else PLAIN] if len(raw) > PLAIN else raw


def _has(pattern: re.Pattern[bytes], line: bytes) -> bool:
    return bool(pattern.search(_STEERS.sub(b"", line) if b"\x1b" in line else line))


def decoded(raw: bytes) -> str:
    """A line as text: UTF-8, cut off where it likes, or else Latin-1; without the sequences that steer a terminal."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(raw)  # which forgives a last character cut short
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    return plain(text).replace("\n", " ")


def unwrapped(text: str) -> list[str]:
    """The lines that one line holds as JSON: a notebook's output, or a log collector's record of one line or many."""
    inner = text.strip().rstrip(",")
    if not inner.startswith(('{"', '"')) or not _HOLDS.search(inner):
        return [text]
    try:
        record = json.loads(f"{{{inner}}}" if _MEMBER.match(inner) else inner)
    except (ValueError, RecursionError):
        return [text]
    values = [*_texts(record)]
    printed = [value for _, value in values if "\n" in value or "\x1b" in value]
    printed = printed or [value for key, value in values if key in _TEXT][:1]
    # As prefixes they are read like any other's.
    before = "".join(f"{value} " for key, value in values if key in _WHEN and PREFIX.match(f"{value} "))
    before += "".join(f"{value}: " for key, value in values if key in _WHO and PREFIX.fullmatch(f"{value}: "))
    return [before + line for value in printed for line in plain(value).split("\n") if line.strip()] or [text]


def _texts(record: object, depth: int = 8, key: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a JSON value with their keys, a few levels down: torchrun's error files have their traceback in the
    third. A rank is a text as well, in the form of a prefix."""
    if isinstance(record, str):
        yield key, record
    elif key in ("rank", "global_rank") and isinstance(record, int):
        yield "rank", f"[rank{record}]"
    elif isinstance(record, dict) and depth:
        for name, value in record.items():
            yield from _texts(value, depth - 1, name)
    elif isinstance(record, list) and depth:
        for value in record:
            yield from _texts(value, depth - 1, key)
