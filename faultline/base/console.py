"""Lines on the terminal."""

import io
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from faultline.base.text import plain


def write_line(console: Console, text: str | Text = "", style: str = "") -> None:
    """One line as it is: no markup, no wrapping, nothing highlighted."""
    line = Text(plain(text).replace("\n", " "), style) if isinstance(text, str) else text
    console.print(line, soft_wrap=True)


def printed(show: Callable[[Console], None]) -> str:
    """What is shown on a console, as it would be in a file: without colours, and without the last line feed."""
    file = io.StringIO()
    show(Console(file=file, force_terminal=False, color_system=None))
    return file.getvalue().removesuffix("\n")
