"""Tables and marked parts of Markdown files."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.base.text import one_line

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def put(file: Path, content: Callable[[], str], markers: tuple[str, str] = (BEGIN, END)) -> str:
    """Put Markdown between two markers of a file."""
    begin, end = markers
    name = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} can't be read: {error}") from None
    parts = re.split(rf"(?m)^(?:{re.escape(begin)}|{re.escape(end)})$", text)  # a text may name them
    if len(parts) != 3 or not text.startswith(begin, len(parts[0])):
        raise UsageError(f"{name} must have the lines {begin} and {end}, once each, around its measured part")
    new = f"{parts[0]}{begin}\n\n{content()}\n\n{end}{parts[2]}"
    if new == text:
        return f"{name}: unchanged"
    file.write_text(new, encoding="utf-8")
    return f"{name}: rewritten"


def as_code(text: str) -> str:
    """Patterns as code: an asterisk means something to Markdown."""
    return re.sub(r"(?<![A-Za-z0-9-])[A-Za-z0-9-]+\*", r"`\g<0>`", text)


def headed(names: Iterable[str], rows: Iterable[str]) -> list[str]:
    """The lines of a table."""
    names = tuple(names)
    return [row(*names), row(*["---"] * len(names)), *rows]


def row(*columns: str) -> str:
    """A line of a table; what stands in its cells can't end them."""
    return "| " + " | ".join(one_line(column).replace("|", r"\|") for column in columns) + " |"
