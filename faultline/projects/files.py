"""The files of a training project: found in a folder, read safely, and recognised by what is in them."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.base.errors import UsageError
from faultline.base.paths import content, real
from faultline.base.text import STDIN, one_line
from faultline.projects.documents import Document

INPUT = "standard input"  # as it is shown
LONGEST = 8_000_000  # bytes of a file; uv.lock of a large project has a tenth of it
LONGEST_YAML = 100_000  # characters, for PyYAML takes seconds for more
DEEPEST = 50  # levels of a YAML file; PyYAML takes minutes for thousands of brackets
# Parts of a TOML key, each of which tomllib takes as many steps for as there are.
DOTTED = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){30}")
# A number of which Python writes no digits; in YAML, one with colons is a number too.
DIGITS = re.compile(r"(?<![\w:])(?:0[xXbBoO][\da-fA-F_]{4000}|\d[\d_]{4000}|(?:\d{1,2}:){900})")
ALIASES = 20  # of a YAML file; merged into each other, more could make millions of keys
FILES, FOLDERS, DEPTH = 300, 3000, 5  # of each kind that are looked at in a folder
USUAL = re.compile(
    r"(?:reqs?|requirements|constraints|freeze)[\w.-]*\.(?:txt|in|lock)|pyproject\.toml|pylock(?:\.[\w-]+)?\.toml|"
    r"(?:uv|poetry|Pipfile)\.lock|.+\.(?:ya?ml|json)"
)
LISTED = re.compile(r"/(?:requirements|reqs)/[^/]+\.(?:txt|in)$")
CODE, SCRIPT = re.compile(r"\.py$"), re.compile(r"\.(?:sh|bash|slurm|sbatch)$")
PAGE = re.compile(r"(?:^|/)README[\w.-]*\.md$")
SHELL = re.compile(r"#!\S*(?:/|/env )(?:ba|z|da)?sh\b")
NOT_OURS = re.compile(
    r"\..*|node_modules|site-packages|__pycache__|venv|wandb|results|outputs?|checkpoint-.*|tests?|docs"
)


@dataclass(frozen=True)
class Candidate:
    """A file that may say something, or an environment; `named` if it was not only found in a folder."""

    path: Path
    name: str
    named: bool


def find(paths: Sequence[str]) -> tuple[list[Candidate], list[str], list[str]]:
    """The files that are named or lie in a named folder; the places in these folders that can't be read, and notes on
    those that are left out."""
    candidates: list[Candidate] = []
    unreadable: list[str] = []
    left_out: list[str] = []
    for path in map(Path, paths):
        if not _is_folder(path) or is_environment(path):
            candidates.append(Candidate(path, INPUT if str(path) == STDIN else one_line(path), named=True))
            continue
        shown_in = path if len(paths) > 1 else Path()
        usual, closed, more = _inside(path)
        candidates += [Candidate(path / each, one_line(shown_in / each), named=False) for each in usual]
        unreadable += [one_line(shown_in / each) for each in closed]
        left_out += more
    return candidates, unreadable, left_out


def is_environment(folder: Path) -> bool:
    """Whether a folder is a virtual environment."""
    try:
        return (folder / "pyvenv.cfg").is_file()
    except OSError:  # a folder that is closed to us
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # within a closed folder; reading it says so
        return False


def _inside(folder: Path) -> tuple[list[Path], list[Path], list[str]]:
    """The usual files of a project's folder and of the levels below, scripts and then code behind the others and the
    nearest first; what can't be read, and links that lead out of the folder; and what is left out."""
    kinds: dict[str, list[Path]] = {"configurations": [], "scripts": [], "programs": []}
    closed: list[Path] = []
    deeper: list[Path] = []
    walk = os.walk(folder, onerror=lambda error: closed.append(Path(error.filename).relative_to(folder)))
    for root, below, names in itertools.islice(walk, FOLDERS):
        place = Path(root).relative_to(folder)
        depth = len(place.parts)
        ours = not depth or "pyvenv.cfg" not in names
        for name in names if ours else ():
            if USUAL.fullmatch(name) or LISTED.search(f"{root}/{name}"):
                kinds["configurations"].append(place / name)
            elif is_program(name):
                kinds["programs" if is_code(name) else "scripts"].append(place / name)
        below[:] = sorted(name for name in below if ours and not NOT_OURS.fullmatch(name))
        if depth >= DEPTH:
            deeper += [place / name for name in below]
            below[:] = []
    nearest = [sorted(each, key=lambda path: (len(path.parts), path))[:FILES] for each in kinds.values()]
    more = [f"{FILES} of {len(each)} {kind} are read, the nearest" for kind, each in kinds.items() if len(each) > FILES]
    more += [f"{one_line(deeper[0])} lies too deep to be read"] if deeper else []
    whole, inside = real(folder), list[Path]()
    for path in itertools.chain.from_iterable(nearest):
        within = real(folder / path).is_relative_to(whole)
        (inside if within else closed).append(path)
    return inside, closed, more


def read(path: Path, name: str = "") -> Document:
    """Read a file and parse it; raises UsageError if it is not text, too long or hostile."""
    name = name or one_line(path)
    try:
        if str(path) == STDIN:
            path, name = Path(), INPUT
            raw = sys.stdin.buffer.read(LONGEST + 1)
        elif path.is_file():
            raw = content(path, LONGEST + 1)
        else:
            raise UsageError(f"{name} is not a file" if path.exists() else f"{name} does not exist")
    except OSError as error:
        raise UsageError(f"{name} can't be read: {error.strerror or error}") from None
    if len(raw) > LONGEST:
        raise UsageError(f"{name} is longer than {LONGEST // 1_000_000} MB, too much for settings or versions")
    text = decoded(raw)
    if text is None:
        raise UsageError(f"{name} is not text")
    if DIGITS.search(text):
        raise UsageError(f"{name} has a number of thousands of digits")
    return Document(name, path, text, None if is_code(name) or is_script(name, text) else parsed(text, name))


def is_code(name: str) -> bool:
    """Whether a file is Python's."""
    return bool(CODE.search(name))


def is_program(name: str) -> bool:
    """Whether a file is code, a script or a page by its name: most of a project's say nothing of a training."""
    return bool(CODE.search(name) or SCRIPT.search(name) or PAGE.search(name))


def is_script(name: str, text: str) -> bool:
    """Whether a file is a shell's, or a page that shows commands."""
    return bool(SCRIPT.search(name) or PAGE.search(name) or SHELL.match(text))


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
        try:
            if DOTTED.search(text):
                raise RecursionError
            if data := tomllib.loads(text):
                return data
        except ValueError as error:
            if name.endswith(".toml"):
                raise UsageError(f"{name} is not valid TOML: {one_line(error)[:200]}") from None
        return _yaml(text, name)
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{name}:{error.lineno} is not valid JSON: {error.msg}") from None
    except ValueError as error:  # such as a number that is too long
        raise UsageError(f"{name} is not valid JSON: {one_line(error)[:100]}") from None


def _yaml(text: str, name: str) -> dict[object, object] | None:
    """A YAML mapping; None for anything else, as every line of text is YAML."""
    if not re.search(r"^[ \t]*[\w\"'.-]+[ \t]*:(?:\s|$)", text, re.MULTILINE):
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
            mark = getattr(error, "problem_mark", None)
            place = f"{name}:{mark.line + 1}" if mark else name
            raise UsageError(
                f"{place} is not valid YAML: {one_line(getattr(error, 'problem', '') or error)[:200]}"
            ) from None
        return None
    return data if isinstance(data, dict) else None
