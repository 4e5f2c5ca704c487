"""A file that was read: its tables, and where in it each key stands."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from faultline.base.text import one_line

Table = Mapping[str, object]
"""A table of somebody's YAML, JSON or TOML, of which nothing is known yet."""


@dataclass(frozen=True)
class Place:
    """Where something is stated: the file, as it is shown and as it lies, a line (0: none), and what stands there."""

    name: str
    line: int = 0
    text: str = ""
    path: Path = Path()

    def __str__(self) -> str:
        return f"{self.without_text} {self.text}".rstrip()

    @property
    def without_text(self) -> str:
        """Without the text: ``train.yaml:3``."""
        return f"{self.name}:{self.line}" if self.line else self.name

    def with_text(self, more: str) -> Place:
        """The same place with more to say of it."""
        return replace(self, text=f"{self.text}, {more}")


@dataclass(frozen=True)
class Document:
    """A file that was read: `data` is its YAML, JSON or TOML; None if it is lines of `text`.

    `lines` are those of keys that aren't written as in these formats, such as a flag of a command.
    """

    name: str
    path: Path
    text: str
    data: Any = None
    lines: Mapping[str, int] = field(default_factory=dict)

    def at(self, *keys: str) -> Place:
        """Where a key stands, its parents named before it."""
        if known := next((key for key in reversed(keys) if key in self.lines), ""):
            return self.place(self.lines[known])
        start = 0
        for key in keys:
            place = re.compile(rf"""(?<![\w.-])["']?{re.escape(key)}["']?\s*[:=]""").search(self.text, start)
            if not place:
                break
            start = place.start()
        return self.line(start)

    def line(self, offset: int) -> Place:
        return self.place(self.text.count("\n", 0, offset) + 1)

    def place(self, line: int) -> Place:
        return Place(one_line(self.name), line, path=self.path)


@dataclass(frozen=True)
class Section:
    """A table of a file, and the keys that lead to it.

    `unknown` are keys that are given, and whose values nobody knows before the script or code runs.
    """

    document: Document
    data: Table
    path: tuple[str, ...] = ()
    unknown: frozenset[str] = frozenset()

    def get(self, key: str) -> Any:
        """A value; a text of JSON is taken as what it says, as transformers does."""
        return value_of(self.data.get(key))

    def section(self, key: str) -> Section:
        """The table of a key; an empty one where something else stands."""
        return Section(self.document, table(self.data, key), (*self.path, key))

    def source(self, key: str, default: str = "") -> Place:
        """The place of a key, and how it stands there: ``train.yaml:3 bf16: true``."""
        value = self.data.get(key, default)
        shown = "" if value is None or isinstance(value, (dict, list)) else one_line(value)[:60]
        shown = shown.lower() if isinstance(value, bool) else shown
        return replace(self.document.at(*self.path, key), text=one_line(key) + (f": {shown}" if shown else ""))


def table(data: object, *keys: str) -> Table:
    """A table within tables; an empty one where something else stands."""
    for key in keys:
        data = value_of(data.get(key)) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def value_of(value: object) -> object:
    """A value, or the table that a text of JSON has."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value
