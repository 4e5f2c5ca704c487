"""Lines on the terminal."""

from rich.console import Console
from rich.text import Text

from faultline.base.text import plain


def write_line(console: Console, text: str | Text = "", style: str = "") -> None:
    """One line as it is: no markup, no wrapping, nothing highlighted."""
    line = Text(plain(text).replace("\n", " "), style) if isinstance(text, str) else text
    console.print(line, soft_wrap=True)
