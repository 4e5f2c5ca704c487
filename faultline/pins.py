"""The versions that a project asks for: requirement and lock files, lists of what is installed, an environment."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from faultline import projects, ranges
from faultline.errors import UsageError
from faultline.projects import Document
from faultline.ranges import Range
from faultline.report import one_line
from faultline.server import STACK

DEEP = 5  # files that include each other
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
LONG = 5000  # characters of a requirement with its hashes
MOST_BAD = 3  # lines that can't be read for each requirement: one conflict of a merge leaves as many
NAMELESS = r"[\w.+:/@-]+\.(?:whl|zip|tar\.gz)|(?:git\+|https?://|file:|\./|\.\./)"


@dataclass(frozen=True)
class Pin:
    """What one place says of a package of the stack; with a `note`, of none, as it can't be read."""

    package: str
    range: Range
    source: str
    note: str = ""


def told(document: Document) -> list[Pin] | None:
    """The versions that a file tells of the libraries under test; None where it is no file of versions at all."""
    data = document.data
    if isinstance(data, dict):
        for known in (_pipfile, _locked, _pyproject, _conda):
            if (found := known(document, data)) is not None:
                return found
        return None
    if isinstance(data, list):
        return _listed(document, data)
    return _lines(document)


def environment(found: Mapping[str, str], source: str) -> list[Pin]:
    """The versions of the libraries under test among those that are installed."""
    pins = (_pin(name, f"=={version}", f"{source}: {name} {version}") for name, version in sorted(found.items()))
    return [pin for pin in pins if pin]


def active() -> Path:
    """The environment that the person at the terminal is in: the active one, or else that of this process."""
    own = Path(sys.prefix)
    told = (Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name))
    return next((path for path in told if path.is_dir() and path.resolve() != own.resolve()), own)


def of_python(name: str) -> Path:
    """The environment of an interpreter, or the folder of one; raises UsageError where there is none."""
    path = Path(name)
    found = path if path.is_dir() else path.absolute().parent.parent  # a link to another one's interpreter is no matter
    if not (path.is_dir() or (path.is_file() and path.parent.name in ("bin", "Scripts"))) or not any(_folders(found)):
        raise UsageError(f"{one_line(name)} is neither an interpreter nor an environment with packages")
    return found


def _folders(prefix: Path) -> Iterator[Path]:
    for pattern in ("lib*/python*/site-packages", "lib/python*/dist-packages", "Lib/site-packages"):
        yield from prefix.glob(pattern)
    yield from prefix.glob("local/lib/python*/dist-packages")  # Debian's


def in_folder(prefix: Path) -> dict[str, str]:
    """What is installed in an environment, by the names of its folders of metadata; nothing of it is imported."""
    names = [entry.name.removesuffix(".dist-info") for each in _folders(prefix) for entry in each.glob("*.dist-info")]
    return {canonicalize_name(name): version for name, _, version in (each.partition("-") for each in names)}


def _pin(name: str, specifier: str, source: str) -> Pin | None:
    package = canonicalize_name(name)
    if package not in STACK:
        return None
    try:
        return Pin(package, ranges.parse(specifier), one_line(source))
    except ValueError:
        return Pin(package, Range(), one_line(source))


def _applies(requirement: Requirement) -> bool:
    """Whether a requirement's marker holds for this Python on Linux, without extras; so it does where it is odd."""
    try:
        return not requirement.marker or requirement.marker.evaluate(LINUX)
    except (UndefinedComparison, UndefinedEnvironmentName):
        return True


def _requirement(text: str, source: str) -> Pin | None:
    """The pin of a requirement; a build that a URL names has the version of its file or tag."""
    found = Requirement(text)
    if not _applies(found):
        return None
    specifier = str(found.specifier)
    if found.url:
        named = re.search(
            r"-(\d[\w.]*?)(?:\+[\w.]+)?(?:-[\w.]+-[\w.]+-[\w.]+\.whl|\.tar\.gz)|@v?(\d[\w.]*)$", found.url
        )
        specifier = f"=={named[1] or named[2]}" if named else ""
    return _pin(found.name, specifier, f"{source} {found.name}{specifier}" if specifier else f"{source} {found.name}")


def _lines(document: Document, depth: int = 0) -> list[Pin] | None:
    """Lines of requirements, as files and `pip freeze` have them, or the tables of `pip list` and `conda list`."""
    pins: list[Pin | None] = []
    bad: list[Pin] = []
    seen, good = False, 0
    table = re.search(
        r"^(?:Package\s+Version|# packages in environment|#\s*Name\s+Version)", document.text, re.MULTILINE
    )
    number = 0
    for raw in _joined(document.text):
        line, lines = raw
        number, source = number + lines, f"{one_line(document.name)}:{number + 1}"
        if len(line) > LONG and "--hash" not in line:
            return None
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if table:
            if len(words) > 1 and re.match(r"\d", words[1]):
                pins.append(_pin(words[0], f"=={words[1]}", f"{source} {words[0]} {words[1]}"))
                seen = True
            continue
        if line.startswith("-"):
            included = re.match(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)", line)
            if included and depth < DEEP:
                pins += _included(document, included[1], depth, source)
            seen = seen or bool(included) or bool(re.match(r"-(?:-[a-z][a-z-]+|[eif])\b", line))
            continue
        try:
            pins.append(_requirement(re.split(r"\s--hash|\s--[a-z]", line)[0], source))
            seen = True
            good += bool(pins[-1] or re.search(r"[<>=~@]", line))  # a word alone may be of any text
        except InvalidRequirement:
            if not re.match(NAMELESS, line):
                bad.append(_unread(source, f"{line[:60]} is no requirement: {_instead(line)}"))
            elif named := next((name for name in STACK if re.search(rf"\b{name}\b", line)), ""):
                pins.append(_unread(source, f"{line[:60]} doesn't say of which package it is: {named} @ {line[:60]}"))
    if not seen or len(bad) > MOST_BAD * good:
        return None
    return [pin for pin in (*pins, *bad) if pin]


def _unread(source: str, note: str) -> Pin:
    return Pin("", Range(), source, one_line(f"{note}; it is passed over"))


def _instead(line: str) -> str:
    """What to do about a line that is no requirement."""
    if re.match(r"[<=>|]{7}", line):
        return "it is left from a merge, of which either side may be meant"
    return "a version is asked for as in trl==0.15.2"


def _joined(text: str) -> Iterator[tuple[str, int]]:
    """The lines without comments, each with how many lines of the file it takes: a backslash joins two."""
    whole, count = "", 0
    for line in text.split("\n"):
        count += 1
        if line.endswith("\\"):
            whole += line[:-1] + " "
            continue
        joined = (whole + line).strip()
        yield joined if joined.startswith("#") else re.sub(r"\s+#.*", "", joined), count
        whole, count = "", 0


def _included(document: Document, name: str, depth: int, source: str) -> list[Pin | None]:
    """What a file that is included says; of one that isn't there, that it isn't known."""
    path = document.path.parent / name
    try:
        found = _lines(projects.read(path), depth + 1)
    except UsageError as error:
        return [_unread(source, str(error))]
    return [*found] if found is not None else [_unread(source, f"{name} has no requirements")]


def _pipfile(document: Document, data: Mapping[str, Any]) -> list[Pin] | None:
    if not isinstance(data.get("_meta"), dict) or not isinstance(data.get("default"), dict):
        return None
    entries = {name: entry for part in ("default", "develop") for name, entry in _table(data, part).items()}
    return _pins((name, str(_of(entry, "version") or ""), document.at(name)) for name, entry in entries.items())


def _locked(document: Document, data: Mapping[str, Any]) -> list[Pin] | None:
    """pylock.toml, uv.lock and poetry.lock: a list of packages, each with a name and a version."""
    packages = data.get("packages" if "lock-version" in data else "package")
    if not isinstance(packages, list):
        return None
    entries = [entry for entry in packages if isinstance(entry, dict)]
    return _pins(
        (str(entry.get("name", "")), f"=={entry.get('version', '')}", _entry(document, str(entry.get("name", ""))))
        for entry in entries
    )


def _entry(document: Document, name: str) -> str:
    found = re.search(rf'^\s*name\s*=\s*"{re.escape(name)}"', document.text, re.MULTILINE)
    return document.line(found.end() if found else 0)


def _pyproject(document: Document, data: Mapping[str, Any]) -> list[Pin] | None:
    if not any(key in data for key in ("project", "tool", "build-system", "dependency-groups")):
        return None
    project, poetry = _table(data, "project"), _table(_table(data, "tool"), "poetry")
    texts = [*_list(project.get("dependencies"))]
    for group in (*_table(project, "optional-dependencies").values(), *_table(data, "dependency-groups").values()):
        texts += _list(group)
    pins = []
    for text in texts:
        found = document.text.find(text)
        try:
            pins.append(_requirement(text, document.line(max(found, 0))))
        except InvalidRequirement:
            continue
    asked = {
        **_table(poetry, "dependencies"),
    }
    for name, entry in asked.items():
        version = str(_of(entry, "version") or "")
        caret = re.fullmatch(r"\^(\d+(?:\.\d+)*)", version)
        pins.append(_pin(name, _caret(caret[1]) if caret else version, f"{document.at(name)} {name} {version}"))
    return [pin for pin in pins if pin]


def _caret(version: str) -> str:
    """Poetry's ``^1.2``: up to the next version of the first number that isn't zero."""
    parts = [int(part) for part in version.split(".")]
    first = next((i for i, part in enumerate(parts) if part), len(parts) - 1)
    return f">={version},<{'.'.join(map(str, [*parts[:first], parts[first] + 1]))}"


def _conda(document: Document, data: Mapping[str, Any]) -> list[Pin] | None:
    """An environment.yml: conda's own ``name=version``, and the part that pip installs."""
    entries = data.get("dependencies")
    if not isinstance(entries, list) or not ("channels" in data or "name" in data):
        return None
    texts = [entry for entry in entries if isinstance(entry, str)]
    texts += [text for entry in entries if isinstance(entry, dict) for text in _list(entry.get("pip"))]
    pins = []
    for text in texts:
        plain = re.sub(r"^([\w.-]+)=(\d[\w.]*)(?:=\S+)?$", r"\1==\2", text.replace("pytorch=", "torch="))
        try:
            pins.append(_requirement(plain, document.line(max(document.text.find(text), 0))))
        except InvalidRequirement:
            continue
    return [pin for pin in pins if pin]


def _listed(document: Document, data: list[Any]) -> list[Pin] | None:
    """`pip list --format json`."""
    entries = [entry for entry in data if isinstance(entry, dict) and {"name", "version"} <= entry.keys()]
    if not entries or len(entries) < len(data):
        return None
    return _pins((str(e["name"]), f"=={e['version']}", document.line(0)) for e in entries)


def _pins(entries: Iterator[tuple[str, str, str]] | Any) -> list[Pin]:
    found = (_pin(name, specifier, f"{source} {name}{specifier}") for name, specifier, source in entries)
    return [pin for pin in found if pin]


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _of(entry: Any, key: str) -> Any:
    return entry.get(key) if isinstance(entry, dict) else entry
