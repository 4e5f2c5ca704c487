"""The files of a training project: found in a folder, read safely, and recognised by what is in them."""

from __future__ import annotations

import itertools
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.errors import UsageError
from faultline.logs import STDIN
from faultline.report import one_line

LONGEST = 8_000_000  # bytes of a file; uv.lock of a large project has a tenth of it
LONGEST_YAML = 100_000  # characters, for PyYAML takes seconds for more
DEEPEST = 50  # brackets within brackets, for which PyYAML takes minutes
ALIASES = 20  # of a YAML file; merged into each other, more could make millions of keys
FILES = 300  # that are looked at in a folder
USUAL = re.compile(
    r"(?:reqs?|requirements|constraints|freeze)[\w.-]*\.(?:txt|in|lock)|pyproject\.toml|pylock(?:\.[\w-]+)?\.toml|"
    r"(?:uv|poetry|Pipfile)\.lock|[\w.+-]+\.(?:ya?ml|json)"
)
NOT_OURS = re.compile(
    r"\..*|node_modules|site-packages|__pycache__|venv|wandb|results|outputs?|checkpoint-.*|tests?|docs"
)


@dataclass(frozen=True)
class Document:
    """A file that was read: `data` is what its YAML, JSON or TOML says, or empty where it is lines of `text`."""

    name: str
    path: Path
    text: str
    data: Any = None

    def at(self, *keys: str) -> str:
        """Where a key stands, its parents named before it: ``train.yaml:3``."""
        start = 0
        for key in keys:
            found = re.compile(rf"""(?<![\w.-])["']?{re.escape(key)}["']?\s*[:=]""").search(self.text, start)
            if not found:
                break
            start = found.start()
        return self.line(start)

    def line(self, offset: int) -> str:
        return f"{one_line(self.name)}:{self.text.count(chr(10), 0, offset) + 1}"


def files(given: list[str]) -> Iterator[tuple[Path, str, bool]]:
    """The files that were asked for, their names, and whether they were named themselves and not found in a folder."""
    for name in given:
        path = Path(name)
        if path.is_dir() and not (path / "pyvenv.cfg").exists():
            found = inside(path)
            yield from ((file, one_line(file.relative_to(path) if len(given) == 1 else file), False) for file in found)
        else:
            yield path, one_line(path), True


def inside(folder: Path) -> list[Path]:
    """The usual files of a project's folder and of the three levels below, the nearest first."""
    found: list[Path] = []
    level = [folder]
    for _ in range(4):
        below: list[Path] = []
        for each in level:
            try:
                entries = sorted(each.iterdir())
            except OSError:
                continue
            found += [entry for entry in entries if USUAL.fullmatch(entry.name) and entry.is_file()]
            below += [entry for entry in entries if entry.is_dir() and not NOT_OURS.fullmatch(entry.name)]
            below = [entry for entry in below if not (entry / "pyvenv.cfg").exists() and not entry.is_symlink()]
        level = below[:FILES]
    return found[:FILES]


def read(path: Path, name: str = "") -> Document:
    """Read a file and parse it as what it is; raises UsageError for what is no text, too long or hostile."""
    name = name or one_line(path)
    if str(path) == STDIN:
        content = sys.stdin.buffer.read(LONGEST + 1)
        return document(content, "standard input", Path())
    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise UsageError(f"{name} is no file" if path.exists() else f"{name} does not exist")
        with open(path, "rb") as file:
            content = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    return document(content, name, path)


def document(content: bytes, name: str, path: Path) -> Document:
    """The content of a file as text, and parsed."""
    if len(content) > LONGEST:
        raise UsageError(f"{name} is longer than {LONGEST // 1_000_000} MB, and no file of settings or versions")
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
    """What a text says as JSON, TOML or YAML; None where it is none of them, such as lines of requirements."""
    start = text.lstrip()[:1]
    try:
        if start in ("{", "["):
            try:
                return json.loads(text)
            except ValueError:
                if start == "{":
                    raise
        if found := _toml(text):
            return found
        return _yaml(text, name)
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{name} is not JSON, though it begins like it: {one_line(error)[:100]}") from None


def _toml(text: str) -> Mapping[str, Any] | None:
    if not re.search(r"^\s*(?:\[|[\w\"'.-]+\s*=(?!=))", text, re.MULTILINE):
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _yaml(text: str, name: str) -> Any:
    """A YAML mapping; None for anything else, as every line of text is YAML of a kind."""
    if not re.search(r"^\s*[\w\"'.-]+\s*:(?:\s|$)", text, re.MULTILINE):
        return None
    if len(text) > LONGEST_YAML:
        raise UsageError(f"{name} is longer than {LONGEST_YAML // 1000} kB, which is too much YAML for settings")
    depth = itertools.accumulate((bracket in "[{") * 2 - 1 for bracket in re.findall(r"[\[\]{}]", text))
    if max(depth, default=0) > DEEPEST or re.search(rf"^(?:[-?] *){{{DEEPEST}}}", text.lstrip(), re.MULTILINE):
        raise UsageError(f"{name} is nested too deeply")
    import yaml  # here, as only this needs it, and it brings a library in C

    try:
        if len(re.findall(r"\*\w", text)) > ALIASES:
            aliases = sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))
            if aliases > ALIASES:
                raise UsageError(f"{name} has {aliases} YAML aliases, and more than {ALIASES} are not followed")
        found = yaml.load(text, yaml.SafeLoader)
    except yaml.YAMLError:
        return None
    except (ValueError, TypeError, OverflowError):  # such as a date that there isn't
        return None
    return found if isinstance(found, dict) else None
