"""Lines on the terminal."""

from rich.console import Console
from rich.text import Text

from faultline.base.text import one_line


def write_line(console: Console, text: str, style: str = "") -> None:
    """One line as it is: no markup, no wrapping, nothing highlighted."""
    console.print(Text(one_line(text), style=style), soft_wrap=True)
