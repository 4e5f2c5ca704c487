"""Logs as people have them: bytes of any kind in, lines of plain text with their rank out, in bounded memory."""

from __future__ import annotations

import codecs
import json
import re
import string
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from faultline.errors import UsageError
from faultline.report import plain

CHUNK = 1 << 18  # bytes that are read at a time
WIDTH = 1 << 16  # bytes of a line of JSON that are kept; the rest is read and dropped
PLAIN = 1 << 13  # bytes of any other, of which nobody reads more
LAYERS = 6  # prefixes that may stand before a line, one behind the other

WINDOW = 1 << 15  # bytes of lines that are looked at together, one of each kind

GZIP = b"\x1f\x8b"
HEAD = 1 << 10  # bytes that tell the encoding
STDIN = "-"
TRACEBACK = "Traceback (most recent call last)"

_BOX = "╭╮╰╯┌┐└┘├┤│┃║─━═┏┓┗┛"

_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_STEERS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")  # colours, and the moves of several progress bars
_CONTROLS = bytes({*range(32), 127} - {*b"\t\n\r\x08\x1b"})

# What stands before a line: who wrote it (a rank or another name), when, and how grave it is. Every repetition is
# bounded or followed by what it can't hold itself, so each takes time in proportion to the line.
_PREFIX = re.compile(
    r"\[(?:local_?)?(?:rank|default|trainer|worker|gpu)[ _:]?(?P<rank>\d{1,5})\]:? ?"
    r"|\[(?P<number>\d{1,5})\]:(?= ?\S) ?"
    r"| {0,4}(?P<srun>\d{1,5}): "
    r"|\[\d{1,5},(?:mpirank:)?(?P<mpi>\d{1,5})(?:,[\w.-]{1,60})?\](?:<std(?:out|err)>)?:?"
    r"|\((?P<actor>[\w.<>:-]{1,60}(?: [\w.-]{1,40})? (?:pid|rank)=\d{1,9}(?:, ip=[\w.:]{1,60})?)\) ?"
    r"|(?P<host>(?=[a-z][a-z.-]{0,40}\d)[a-z][\w.-]{0,60}|\d{1,3}(?:\.\d{1,3}){3}): "
    r"|(?P<service>(?=[a-z][a-z.-]{0,40}\d)[a-z][\w.-]{0,60}) {1,8}\| "
    r"|(?P<time>\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?(?: [-|])?:? ?"
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\](?: [-|])? ?"
    r"|[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d "
    r"|\[ {0,9}\d{1,9}\.\d{3,9}\] "
    r"|\[?[IWEF]\d{3,4} \d\d:\d\d:\d\d[.\d]{0,10} {1,4}(?:\d{1,9} )?[\w./+-]{1,200}:\d{1,6}\] )"
    r"|(?P<level>\[(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\][ :-]{0,3}"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL) {0,5}[|:-] ?"
    r"|\[(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\|[\w.:/-]{1,120}\] ?"
    r"|\[[\w./-]{1,80}:\d{1,6}(?::\w{1,60})?\] "
    r"|std(?:err|out) [FP] )"
    r"|(?P<quote>> )"
    r"|(?P<group> {2,12}[+|] )",  # of exceptions
    re.IGNORECASE,
)

# What log collectors name the line that they took up, its time, and who wrote it.
_SAID = ("message", "log", "msg", "textPayload", "MESSAGE")
_WHEN = ("timestamp", "@timestamp", "time")
_WHO = ("rank", "pod_name", "pod", "hostname", "host")
_HOLDS = re.compile(r"\\n|\\u001b|\"(?:message|log|msg|textPayload|MESSAGE)\" ?:")
_MEMBER = re.compile(r'"[\w.@-]{1,80}" ?: ?"')  # of an object that stands in several lines

_FIRST = frozenset("[(> " + string.ascii_letters + string.digits)  # what any of these begins with


class Line(NamedTuple):  # of which there may be many millions
    """One line of a log: `number` counts line feeds from 1, `text` has neither prefixes nor control characters.

    `stream` names the writer that prefixes tell, `rank` its rank; `dated` says that the line began with a time or a
    level, and so is a new message; `time` is how it tells that.
    """

    file: str
    number: int
    text: str
    rank: int | None = None
    stream: str = ""
    dated: bool = False
    time: str = ""


Wanted = Callable[[], "re.Pattern[bytes] | None"]
"""What a line must have for anybody to care, at the moment when it is asked; None where every line counts. A pattern
stays within a line, takes all digits for the same, and looks for words, which escape sequences may interrupt."""


def everything() -> None:
    return None


def read(files: Sequence[str], wanted: Wanted = everything, binary: list[str] | None = None) -> Iterator[Line]:
    """The lines of files, one behind the other; ``-`` is standard input. Raises UsageError for what can't be read.

    `binary` gets the names of those that are no text, see `lines`.
    """
    for name in files:
        if name == STDIN:
            yield from lines("standard input", chunks(sys.stdin.buffer), wanted, binary)
            continue
        try:
            with open(name, "rb") as stream:
                yield from lines(name, chunks(stream), wanted, binary)
        except OSError as error:
            raise UsageError(f"{plain(name)} can't be read: {error.strerror or error}") from None


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk


def lines(
    name: str, content: Iterable[bytes], wanted: Wanted = everything, binary: list[str] | None = None
) -> Iterator[Line]:
    """The lines of one log, the same however its bytes are cut into pieces.

    Its name is added to `binary` where it begins with what no log has: many control characters, in whichever encoding.
    """
    parts = utf8(unzipped(content))
    first = next(parts, b"")
    head = first[:CHUNK]
    if binary is not None and len(head) > 10 * len(head.translate(None, _CONTROLS)) // 9:
        binary.append(name)
    for number, raw in split(_chain(first, parts), wanted):
        for text in unwrapped(decoded(raw)):
            yield Line(name, number, *bare(text))


def unzipped(content: Iterable[bytes]) -> Iterator[bytes]:
    """What is in gzip members, known by their first bytes, else the bytes as they are; a torn member ends it."""
    parts = _with_head(content, len(GZIP))
    first = next(parts, b"")
    if not first.startswith(GZIP):
        yield first
        yield from parts
        return
    inflate = zlib.decompressobj(31)
    for part in _chain(first, parts):
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
    """UTF-16 as UTF-8, and UTF-8 without its mark; the rest is left for `decoded`."""
    parts = _with_head(content, HEAD)
    first = next(parts, b"")
    if encoding := _utf16(first[:HEAD]):
        decoder = codecs.getincrementaldecoder(encoding)("replace")
        for part in _chain(first.removeprefix(codecs.BOM_UTF16_LE).removeprefix(codecs.BOM_UTF16_BE), parts):
            yield decoder.decode(part).encode("utf-8", "replace")
        return
    yield first.removeprefix(codecs.BOM_UTF8)
    yield from parts


def _utf16(head: bytes) -> str:
    """The form of UTF-16 in which a text begins, by its mark or as every second byte is zero; empty if it doesn't."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    if head.startswith(codecs.BOM_UTF16_LE) or 10 * even < odd > len(head) // 4:
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE) or 10 * odd < even > len(head) // 4:
        return "utf-16-be"
    return ""


def _with_head(content: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes, the first piece of at least `size` where there are as many."""
    head = b""
    for part in content:
        if len(head) >= size:
            yield part
            continue
        head += part
        if len(head) >= size:
            yield head
    if len(head) < size:
        yield head


def _chain(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def split(content: Iterable[bytes], wanted: Wanted = everything) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers and without their ends: the first bytes of what each showed last, where carriage returns
    overwrite: `WIDTH` of what may be JSON, else `PLAIN`. Lines without what is `wanted` at that moment are passed over
    as fast as they are read."""
    kept, returned, number = b"", False, 0
    for part in content:
        at = stop = 0  # where the next line begins, and where the stretch ends that has wanted lines
        while part:
            pattern = wanted()
            if pattern and not kept and not returned:  # at the beginning of a line
                start, stop = (at, stop) if at < stop else _telling(pattern, part, at)
                match = pattern.search(part, start, stop)
                passed = part.rfind(b"\n", at, match.start() if match else stop) + 1
                if passed:
                    number += part.count(b"\n", at, passed)
                    at = passed
            end = part.find(b"\n", at)
            piece = part[at:end] if end >= 0 else part[at:]
            body = piece.rstrip(b"\r")
            if body:
                _, again, shown = body.rpartition(b"\r")
                if returned or again:
                    kept = b""
                if len(kept) < WIDTH:
                    kept = _beginning(kept + shown[:WIDTH])
                returned = False
            returned = returned or len(body) < len(piece)
            if end < 0:
                break
            number, at = number + 1, end + 1
            if not pattern or pattern.search(_STEERS.sub(b"", kept) if b"\x1b" in kept else kept):
                yield number, kept
            kept, returned = b"", False
    if kept and (not (pattern := wanted()) or pattern.search(_STEERS.sub(b"", kept))):
        yield number + 1, kept


def _beginning(line: bytes) -> bytes:
    return line[: WIDTH if line.lstrip()[:1] in (b"{", b'"') else PLAIN]


def _telling(pattern: re.Pattern[bytes], part: bytes, at: int) -> tuple[int, int]:
    """Where the next stretch of about `WINDOW` bytes begins and ends that has a wanted line; else the end, twice.

    Most lines of a log differ from others in digits and escape sequences alone: one of each kind is searched.
    """
    stop = at
    while stop < len(part):
        start, stop = stop, part.find(b"\n", stop + WINDOW) + 1 or len(part)
        kinds = b"\n".join({*part[start:stop].translate(_ONE_DIGIT).split(b"\n")})
        if pattern.search(_STEERS.sub(b"", kinds)):
            return start, stop
    return stop, stop


def decoded(raw: bytes) -> str:
    """A line as text: UTF-8, cut off where it likes, or else Latin-1; what steers a terminal is gone."""
    text = raw.decode("ascii") if raw.isascii() else _utf8_or_latin(raw)
    if text.isprintable() and text.isascii():
        return text
    return plain(text).replace("\n", " ")


def _utf8_or_latin(raw: bytes) -> str:
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw)  # which forgives a last character cut short
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def unwrapped(text: str) -> list[str]:
    """The lines that one line holds as JSON: a notebook's output, or a log collector's record of one line or many."""
    inner = text.strip().rstrip(",")
    if not inner.startswith(('{"', '"')) or not _HOLDS.search(inner):
        return [text]
    try:
        told = json.loads(f"{{{inner}}}" if _MEMBER.match(inner) else inner)
    except (ValueError, RecursionError):
        return [text]
    found = [*_texts(told)]
    said = [value for _, value in found if "\n" in value or "\x1b" in value]
    said = said or [value for key, value in found if key in _SAID][:1]
    # As prefixes they are read like any other's.
    before = "".join(f"{value} " for key, value in found if key in _WHEN and _PREFIX.match(f"{value} "))
    before += "".join(f"{value}: " for key, value in found if key in _WHO and _PREFIX.fullmatch(f"{value}: "))
    return [before + line for value in said for line in plain(value).split("\n") if line.strip()] or [text]


def _texts(told: object, depth: int = 8, key: str = "") -> Iterator[tuple[str, str]]:
    """The texts in a JSON value with their keys, a few levels down: torchrun's error files have their traceback in the
    third. A rank is a text as well, as `_WHO` words it."""
    if isinstance(told, str):
        yield key, told
    elif key in ("rank", "global_rank") and isinstance(told, int):
        yield "rank", f"[rank{told}]"
    elif isinstance(told, dict) and depth:
        for name, value in told.items():
            yield from _texts(value, depth - 1, name)
    elif isinstance(told, list) and depth:
        for value in told:
            yield from _texts(value, depth - 1, key)


def bare(text: str) -> tuple[str, int | None, str, bool, str]:
    """A line's text without prefixes, the rank and the writer that they name, whether one was a time, and which."""
    rank, names, dated, time, at = None, "", False, "", 0
    for _ in range(LAYERS):
        match = _PREFIX.match(text, at) if text[at : at + 1] in _FIRST else None
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
    if rank is not None:
        names += f"rank {rank}"
    return text.rstrip(), rank, names.strip(), dated, time.strip()
