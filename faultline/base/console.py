"""Lines on the terminal."""

import io
import textwrap
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from faultline.base.text import one_line, plain


def write_line(console: Console, text: str | Text = "", style: str = "") -> None:
    """One line as it is: no markup, no wrapping, nothing highlighted."""
    line = Text(plain(text).replace("\n", " "), style) if isinstance(text, str) else text
    console.print(line, soft_wrap=True)


def write_text(console: Console, text: str | Text, style: str = "") -> None:
    """Prose: on a terminal it is broken between words, in a file nowhere."""
    line = Text(one_line(text), style) if isinstance(text, str) else text
    for part in line.wrap(console, console.width) if console.is_terminal else [line]:
        write_line(console, part)


def write_beside(console: Console, name: str, text: str, width: int, style: str = "dim") -> None:
    """A name of so many characters, and a text wrapped beside it, in no word."""
    wrapped = textwrap.wrap(
        one_line(text), max(console.width - width - 2, 20), break_on_hyphens=False, break_long_words=False
    )
    for number, line in enumerate(wrapped):
        write_line(console, Text("  ").append(f"{'' if number else name:<{width}}", style).append(line))


def printed(show: Callable[[Console], None]) -> str:
    """What is shown on a console, as it would be in a file: without colours, and without the last line feed."""
    file = io.StringIO()
    show(Console(file=file, force_terminal=False, color_system=None))
    return file.getvalue().removesuffix("\n")
