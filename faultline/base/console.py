"""Lines on the terminal."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from typing import TextIO

from rich.console import Console
from rich.text import Text

from faultline.base.text import one_line, plain

ACTIONS = "GITHUB_ACTIONS"  # is set where GitHub takes lines of what is printed for commands
_TAKEN = re.compile(r"(?<!\S)::|##(?=\[)")
COMMAND = "faultline "  # in a line that somebody copies
WIDEST = 20  # characters of a label beside which the rest of its text stands


class Harmless(io.TextIOWrapper):
    """A stream in which no text of a log, a project or a model is a command of GitHub's, such as ``::error::``."""

    def write(self, text: str) -> int:
        super().write(unheard(text))
        return len(text)


def unheard(text: str) -> str:
    """A text without commands of GitHub's, where that reads what is printed."""
    return _TAKEN.sub(lambda sign: " ".join(sign[0]), text) if os.environ.get(ACTIONS) else text


def harmless(stream: TextIO) -> TextIO:
    """A stream that takes its place where GitHub reads what is printed."""
    if not os.environ.get(ACTIONS) or not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return Harmless(stream.buffer, stream.encoding, "replace", line_buffering=True)


def print_commands(lines: Iterable[str]) -> None:
    """Print what is for GitHub itself."""
    stream = sys.stdout
    for line in lines:
        io.TextIOWrapper.write(stream, f"{line}\n") if isinstance(stream, Harmless) else print(line)


def write_line(console: Console, text: str | Text = "", style: str = "") -> None:
    """One line: no markup, nothing highlighted.

    On a terminal a longer one is broken between words, and goes on beside its label, unless it has a command; in a
    file it stays one line.
    """
    line = Text(plain(text).replace("\n", " "), style) if isinstance(text, str) else text
    if not console.is_terminal or line.cell_len <= console.width or COMMAND in line.plain:
        console.print(line, soft_wrap=True)
        return
    label = re.match(r" *\S+(?: \S+)* {2,}", line.plain)
    indent = label.end() if label and label.end() <= WIDEST else len(line.plain) - len(line.plain.lstrip()) + 2
    ends, start, room = [], 0, console.width
    for word in re.finditer(r"\S+", line.plain):
        if word.end() - start > room and word.start() > start:
            start, room = word.start(), console.width - indent
            ends.append(start)
    for number, part in enumerate(line.divide(ends)):
        part.rstrip()
        console.print(Text(" " * indent if number else "").append(part), soft_wrap=True)


def write_beside(console: Console, name: str, text: str, width: int, style: str = "dim") -> None:
    """A name of so many characters, and a text beside it, which only a terminal has wrapped, and in no word."""
    line, room = one_line(text), max(console.width - width - 2, 20)
    if console.is_terminal:
        wrapped = textwrap.wrap(line, room, break_on_hyphens=False, break_long_words=False)
    else:
        wrapped = [line] if line else []
    for number, line in enumerate(wrapped):
        write_line(console, Text("  ").append(f"{'' if number else name:<{width}}", style).append(line))


def printed(show: Callable[[Console], None]) -> str:
    """The text that is shown on a console, as it would be in a file: without colours, and without the last line
    feed."""
    file = io.StringIO()
    show(Console(file=file, force_terminal=False, color_system=None))
    return file.getvalue().removesuffix("\n")
