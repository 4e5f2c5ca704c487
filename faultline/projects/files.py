"""The files of a training project: found in a folder, read safely, and recognised by what is in them."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.base.errors import UsageError
from faultline.base.text import STDIN, one_line

LONGEST = 8_000_000  # bytes of a file; uv.lock of a large project has a tenth of it
LONGEST_YAML = 100_000  # characters, for PyYAML takes seconds for more
DEEPEST = 50  # levels of a YAML file; PyYAML takes minutes for thousands of brackets
ALIASES = 20  # of a YAML file; merged into each other, more could make millions of keys
FILES, FOLDERS, DEPTH = 300, 3000, 3  # that are looked at in a folder
USUAL = re.compile(
    r"(?:reqs?|requirements|constraints|freeze)[\w.-]*\.(?:txt|in|lock)|pyproject\.toml|pylock(?:\.[\w-]+)?\.toml|"
    r"(?:uv|poetry|Pipfile)\.lock|[\w.+-]+\.(?:ya?ml|json)"
)
NOT_OURS = re.compile(
    r"\..*|node_modules|site-packages|__pycache__|venv|wandb|results|outputs?|checkpoint-.*|tests?|docs"
)


Table = Mapping[str, object]
"""A table of somebody's YAML, JSON or TOML, of which nothing is known yet."""


@dataclass(frozen=True)
class Candidate:
    """A file that may say something, or an environment; `named` if it was not only found in a folder."""

    path: Path
    name: str
    named: bool


@dataclass(frozen=True)
class Document:
    """A file that was read: `data` is its YAML, JSON or TOML; None if it is lines of `text`."""

    name: str
    path: Path
    text: str
    data: Any = None

    def at(self, *keys: str) -> str:
        """Where a key stands, its parents named before it: ``train.yaml:3``."""
        start = 0
        for key in keys:
            place = re.compile(rf"""(?<![\w.-])["']?{re.escape(key)}["']?\s*[:=]""").search(self.text, start)
            if not place:
                break
            start = place.start()
        return self.line(start)

    def line(self, offset: int) -> str:
        return f"{one_line(self.name)}:{self.text.count(chr(10), 0, offset) + 1}"


@dataclass(frozen=True)
class Section:
    """A table of a file, and the keys that lead to it."""

    document: Document
    data: Table
    path: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        return self.data.get(key)

    def section(self, key: str) -> Section:
        """The table of a key; an empty one where something else stands."""
        return Section(self.document, table(self.data, key), (*self.path, key))

    def source(self, key: str, default: str = "") -> str:
        """The place of a key, and how it stands there: ``train.yaml:3 bf16: true``."""
        value = self.data.get(key, default)
        shown = "" if value is None or isinstance(value, (dict, list)) else one_line(value)[:60]
        shown = shown.lower() if isinstance(value, bool) else shown
        return f"{self.document.at(*self.path, key)} {one_line(key)}" + (f": {shown}" if shown else "")


def table(data: object, *keys: str) -> Table:
    """A table within tables; an empty one where something else stands."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else {}


def find(paths: Sequence[str]) -> tuple[list[Candidate], list[str]]:
    """The files that are named or lie in a named folder, and the places in these folders that can't be read."""
    candidates: list[Candidate] = []
    unreadable: list[str] = []
    for path in map(Path, paths):
        if not path.is_dir() or is_environment(path):
            candidates.append(Candidate(path, one_line(path), named=True))
            continue
        shown_in = path if len(paths) > 1 else Path()
        usual, closed = _inside(path)
        candidates += [Candidate(path / each, one_line(shown_in / each), named=False) for each in usual]
        unreadable += [one_line(shown_in / each) for each in closed]
    return candidates, unreadable


def is_environment(folder: Path) -> bool:
    """Whether a folder is a virtual environment."""
    return (folder / "pyvenv.cfg").is_file()


def _inside(folder: Path) -> tuple[list[Path], list[Path]]:
    """The usual files of a project's folder and of the three levels below, the nearest first; what can't be read."""
    usual: list[Path] = []
    closed: list[Path] = []
    walk = os.walk(folder, onerror=lambda error: closed.append(Path(error.filename).relative_to(folder)))
    for root, below, names in itertools.islice(walk, FOLDERS):
        place = Path(root).relative_to(folder)
        depth = len(place.parts)
        ours = not depth or "pyvenv.cfg" not in names
        usual += [place / name for name in names if ours and USUAL.fullmatch(name)]
        below[:] = sorted(name for name in below if ours and depth < DEPTH and not NOT_OURS.fullmatch(name))
    return sorted(usual, key=lambda path: (len(path.parts), path))[:FILES], closed


def read(path: Path, name: str = "") -> Document:
    """Read a file and parse it; raises UsageError if it is not text, too long or hostile."""
    name = name or one_line(path)
    try:
        if str(path) == STDIN:
            path, name = Path(), "standard input"
            content = sys.stdin.buffer.read(LONGEST + 1)
        elif path.is_file():  # a pipe would keep us waiting
            with open(path, "rb") as file:
                content = file.read(LONGEST + 1)
        else:
            raise UsageError(f"{name} is not a file" if path.exists() else f"{name} does not exist")
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    if len(content) > LONGEST:
        raise UsageError(f"{name} is longer than {LONGEST // 1_000_000} MB, too much for settings or versions")
    text = decoded(content)
    if text is None:
        raise UsageError(f"{name} is not text")
    return Document(name, path, text, parsed(text, name))


def decoded(content: bytes) -> str | None:
    """The text of a file in UTF-8, or in UTF-16 as PowerShell writes it; None for anything else."""
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        return None
    return None if "\x00" in text else text.replace("\r\n", "\n")


def parsed(text: str, name: str) -> Any:
    """A text's JSON, TOML or YAML; None if it is something else, such as lines of requirements."""
    start = text.lstrip()[:1]
    try:
        if start == "{":
            return json.loads(text)
        if start == "[":
            with suppress(ValueError):
                return json.loads(text)
        with suppress(ValueError):
            if data := tomllib.loads(text):
                return data
        return _yaml(text, name)
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{name} is not valid JSON: {one_line(error)[:100]}") from None


def _yaml(text: str, name: str) -> Table | None:
    """A YAML mapping; None for anything else, as every line of text is YAML."""
    if not re.search(r"^\s*[\w\"'.-]+\s*:(?:\s|$)", text, re.MULTILINE):
        return None
    if len(text) > LONGEST_YAML:
        raise UsageError(f"{name} is longer than {LONGEST_YAML // 1000} kB, too much for settings in YAML")
    import yaml  # here, as only this needs it, and it brings a library in C

    depth = aliases = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):  # one by one, so that a hostile file ends early
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            aliases += isinstance(event, yaml.AliasEvent)
            if depth > DEEPEST or aliases > ALIASES:
                raise UsageError(f"{name} is nested too deeply, or has more than {ALIASES} YAML aliases")
        data = yaml.load(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:  # such as a date that there isn't
        if name.endswith((".yaml", ".yml")):
            raise UsageError(f"{name} is not valid YAML: {one_line(error)[:200]}") from None
        return None
    return data if isinstance(data, dict) else None
