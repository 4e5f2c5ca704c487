"""The versions that a project asks for: requirement and lock files, lists of what is installed, an environment."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name

from faultline.base.errors import UsageError
from faultline.base.packages import STACK
from faultline.base.paths import real
from faultline.base.text import misspelt, one_line
from faultline.observations import ranges
from faultline.observations.ranges import Range
from faultline.projects import files
from faultline.projects.documents import Document, Place, Table, table
from faultline.stacks.requests import parsed_requirement

FRAMEWORKS = ("llamafactory", "axolotl", "ms-swift", "openrlhf", "verl")
"""Packages that train with those under test, and whose releases set other defaults."""
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
LONG = 5000  # characters of a requirement with its hashes
MOST = 5000  # requirements of a file; a large project's lock has some hundreds
MOST_UNREAD = 3  # lines that aren't requirements for each that is, as a merge conflict leaves them
REPOSITORY = re.compile(r"git\+\S+?/([\w-]+)(?:\.git)?(?:@\S+)?$")  # its name is the package's
UNREAD = "not a requirement like trl==0.15.2"
NAMELESS = re.compile(r"[\w.+:/@-]+\.(?:whl|zip|tar\.gz)|(?:git\+|https?://|file:|\./|\.\./)")
BEGUN = re.compile(r"([\w.-]+)\s*[<>=!~;@(\[]")  # a requirement, of which the rest may be anything
INCLUDED = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)")
OPTION = re.compile(r"-(?:-[a-z][a-z-]+|[eif])\b")
PRINTED = re.compile(r"^(?:Package\s+Version|# packages in environment|#\s*Name\s+Version)", re.MULTILINE)
NAMED = re.compile(r'[ \t]*name[ \t]*=[ \t]*"([^"]*)"')  # a package of a lock
ROW = re.compile(r"([\w.-]+)\s+(\d\S*)")  # of what pip or conda print
BUILD = re.compile(r"-(\d[\w.]*?)(?:\+[\w.]+)?(?:-[\w.]+-[\w.]+-[\w.]+\.whl|\.tar\.gz)|@v?(\d[\w.]*)(?:#.*)?$")


@dataclass(frozen=True)
class Pin:
    """The versions of a package under test that one place asks for; with a `note`, why a line of it is skipped."""

    package: str
    range: Range
    source: Place
    note: str = ""


def read(document: Document) -> list[Pin] | None:
    """The versions that a file asks of the libraries under test; None if it isn't a file of versions."""
    pins: Iterable[Pin | None] | None = None
    match document.data:
        case {"_meta": dict(), "default": dict(default)} as data:  # Pipfile.lock
            entries = {**default, **table(data, "develop")}
            pins = (pinned(name, _version(entry), partial(document.at, str(name))) for name, entry in entries.items())
        case {"lock-version": _, "packages": list(packages)} | {"package": list(packages)}:
            pins = _locked(document, packages)
        case {"project": _} | {"tool": _} | {"build-system": _} | {"dependency-groups": _} as data:
            pins = _pyproject(document, data)
        case {"dependencies": list(entries), "channels": _} | {"dependencies": list(entries), "name": _}:
            pins = _conda(document, entries)
        case [_, *_] as entries if all({"name", "version"} <= table(entry).keys() for entry in entries):
            pins = (pinned(entry["name"], f"=={entry['version']}", lambda: document.line(0)) for entry in entries)
        case None if PRINTED.search(document.text):
            rows = [(row, n) for n, line in enumerate(document.text.split("\n"), 1) if (row := ROW.match(line))]
            pins = (pinned(row[1], f"=={row[2]}", partial(document.place, n)) for row, n in rows) if rows else None
        case None:
            pins = _lines(document, {real(document.path)})
    return None if pins is None else [pin for pin in _bounded(document, pins) if pin]


def _bounded(document: Document, pins: Iterable[Pin | None]) -> Iterator[Pin | None]:
    """The requirements of a file; raises UsageError where it has more than a project would."""
    for number, pin in enumerate(pins):
        if number == MOST:
            raise UsageError(f"{document.name} has more than {MOST:,} requirements")
        yield pin


def of_setup(document: Document) -> list[Pin]:
    """The versions that lists of requirements in a setup.py ask for; the code is parsed, and never run."""
    try:
        tree = ast.parse(document.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    lists = (node.elts for node in ast.walk(tree) if isinstance(node, ast.List | ast.Tuple | ast.Set))
    texts = [each for elements in lists for each in elements if isinstance(each, ast.Constant)]
    pins = (_stated_pin(document, str(each.value), str(each.value), each.lineno) for each in texts)
    return [pin for pin in _bounded(document, pins) if pin]


def pinned(name: object, specifier: str, place: Callable[[], Place]) -> Pin | None:
    """The pin of a package, if it is under test; of any version, if its specifier can't be read.

    Only of such a package the place is looked for: a lock file may have very many others.
    """
    package = canonicalize_name(str(name))
    if package not in STACK and package not in FRAMEWORKS:
        return None
    source = replace(place(), text=one_line(f"{name}{specifier}"))
    try:
        return Pin(package, ranges.parse(specifier), source)
    except ValueError:
        return Pin(package, Range(), source)


def _requirement(text: str, place: Callable[[], Place]) -> Pin | None:
    """The pin of a requirement, if its marker holds for this Python on Linux; raises InvalidRequirement.

    A name that is nearly that of a package under test gets a note.
    """
    requirement = parsed_requirement(text)
    if meant := misspelt(canonicalize_name(requirement.name), STACK):
        return Pin("", Range(), place(), f"{one_line(requirement.name)}: did you mean {meant}?")
    if requirement.marker and not _holds(str(requirement.marker)):
        return None
    if not requirement.url:
        return pinned(requirement.name, str(requirement.specifier), place)
    build = BUILD.search(requirement.url)  # the version of its file or tag
    version = (build[1] or build[2]) if build else ""
    if "." in version and ranges.is_version(version):  # and not a commit
        return pinned(requirement.name, f"=={version}", place)
    return _elsewhere(requirement.name, place, requirement.url)


def _elsewhere(name: str, place: Callable[[], Place], where: str) -> Pin | None:
    """A note on a package under test that comes from somewhere else than an index."""
    package = canonicalize_name(name)
    note = one_line(f"{name} comes from {where}, so its version is unknown")
    return Pin(package, Range(), place(), note) if package in STACK or package in FRAMEWORKS else None


def _holds(marker: object) -> bool:
    """Whether a marker holds for this Python on Linux; one that can't be read is taken to."""
    try:
        return Marker(str(marker)).evaluate(LINUX)
    except (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, ValueError, RecursionError):
        return True


def _lines(document: Document, seen: set[Path]) -> list[Pin | None] | None:
    """Lines of requirements, as pip takes and `pip freeze` writes them; None for any other text.

    `seen` are the files that were read: each is included once.
    """
    pins: list[Pin | None] = []
    known, good, bad = False, 0, 0
    for number, line in _joined(document.text):
        source = document.place(number)
        if (len(line) > LONG and "--hash" not in line) or bad > MOST_UNREAD * good + MOST // 10:
            return None
        if len(pins) > MOST:
            break
        if included := INCLUDED.match(line):
            known = True
            pins += _included(document, included[1], seen, source)
        elif line.startswith("-"):
            known = known or bool(OPTION.match(line))
        elif line:
            try:
                pins.append(_requirement(re.split(r"\s--(?:hash|[a-z])", line)[0], partial(document.place, number)))
                known = True
                good += bool(pins[-1] or re.search(r"[<>=~@]", line))  # a word alone may be of any text
            except InvalidRequirement:
                pins += _unread(line, source)
                bad += not NAMELESS.match(line)
    return pins if known and bad <= MOST_UNREAD * good else None


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """The lines without comments, each with its number; a backslash joins the next line."""
    number = 1
    for lines in re.findall(r"(?:.*\\\n)*.*\n?", text):
        yield number, re.split(r"(?:^|\s)#", re.sub(r"\\(?:\n|\Z)", " ", lines), maxsplit=1)[0].strip()
        number += lines.count("\n")


def _included(document: Document, name: str, seen: set[Path], source: Place) -> list[Pin | None]:
    """The pins of an included file, or a note why there are none; of one elsewhere, no line is shown."""
    folder = real(document.path.parent)
    file = real(folder / name)
    if file in seen:
        return []
    seen.add(file)
    try:
        pins = _lines(files.read(file, one_line(document.path.parent / name)), seen)
    except UsageError as error:
        return [_skipped(source, str(error))]
    if pins is None:
        return [_skipped(source, f"{name} has no requirements")]
    if not file.is_relative_to(folder):
        pins = [replace(pin, note=f"skipped, {UNREAD}") if pin and pin.note else pin for pin in pins]
    return pins


def _unread(line: str, source: Place) -> list[Pin | None]:
    """A note on a line that isn't a requirement, but none on a build of a package that isn't under test."""
    if (repository := REPOSITORY.match(line)) and repository[1] in STACK:
        return [_requirement(f"{repository[1]} @ {line}", lambda: source)]
    if not NAMELESS.match(line):
        return [_skipped(source, f"{UNREAD}: {line[:60]}")]
    names = [name for name in STACK if re.search(rf"\b{name}\b", line)]
    return [_skipped(source, f"names no package: write {name} @ {line[:60]}") for name in names[:1]]


def _skipped(source: Place, why: str) -> Pin:
    return Pin("", Range(), source, one_line(f"skipped, {why}"))


def _locked(document: Document, packages: Iterable[object]) -> Iterator[Pin | None]:
    """The packages of pylock.toml, uv.lock or poetry.lock, whatever else their entries have or lack."""
    numbered = [(NAMED.match(line), number) for number, line in enumerate(document.text.split("\n"), 1)]
    places = {named[1]: number for named, number in reversed(numbered) if named}
    for package in map(table, packages):
        name = str(package.get("name", ""))
        markers = package.get("resolution-markers") or [package.get("marker") or package.get("markers") or ""]
        if canonicalize_name(name) in STACK and any(map(_holds, markers if isinstance(markers, list) else [markers])):
            yield pinned(name, f"=={package.get('version', '')}", partial(document.place, places.get(name, 1)))


def _pyproject(document: Document, data: Table) -> Iterator[Pin | None]:
    project = table(data, "project")
    groups = (*table(project, "optional-dependencies").values(), *table(data, "dependency-groups").values())
    requirements = [text for group in (project.get("dependencies"), *groups) for text in _texts(group)]
    uv = {str(name): entry for name, entry in table(data, "tool", "uv", "sources").items()}
    elsewhere = {canonicalize_name(name): pin for name, entry in uv.items() if (pin := _uv(document, name, entry))}
    pins = (_stated_pin(document, text, text) for text in requirements)
    yield from (pin for pin in pins if not pin or pin.package not in elsewhere)
    yield from elsewhere.values()
    for name, entry in table(data, "tool", "poetry", "dependencies").items():
        if canonicalize_name(str(name)) in STACK:  # poetry-core's parser is slow
            yield pinned(name, _poetry(_version(entry)), partial(document.at, str(name)))


def _uv(document: Document, name: str, entry: object) -> Pin | None:
    """The pin of a package that uv takes from a tag or a file, or a note that its version isn't known; None if it comes
    from an index after all."""
    taken = [table(each) for each in (entry if isinstance(entry, list) else [entry])]
    kinds = [
        (kind, one_line(each[kind])) for each in taken for kind in ("git", "url", "path", "workspace") if kind in each
    ]
    if not kinds or canonicalize_name(name) not in STACK:
        return None
    start = max(document.text.find("tool.uv.sources"), 0)
    entry_at = re.compile(rf"\b{re.escape(name)}\b").search(document.text, start)
    place = document.line(entry_at.start() if entry_at else start)
    names = [str(each.get(key) or "") for each in taken for key in ("tag", "rev", "url", "path")]
    builds = {build[1] or build[2] for text in names if text and (build := BUILD.search(f"@{text}"))}
    version = builds.pop() if len(builds) == len(kinds) == 1 else ""
    if "." in version and ranges.is_version(version):  # and not a commit
        return pinned(name, f"=={version}", lambda: place)
    branch = next((str(each["branch"]) for each in taken if "branch" in each), "")
    return _elsewhere(name, lambda: place, f"branch {branch}" if branch else f"{kinds[0][0]} {kinds[0][1]}")


def _poetry(version: str) -> str:
    """A specifier for Poetry's own constraint, such as ``>=1.2,<2.0`` for ``^1.2``."""
    from poetry.core.constraints.version import Version, parse_constraint  # here, as only this needs it

    try:
        constraint = parse_constraint(version or "*")
    except ValueError:
        return version
    return "" if constraint.is_any() else f"=={constraint}" if isinstance(constraint, Version) else str(constraint)


def _conda(document: Document, entries: Sequence[object]) -> Iterator[Pin | None]:
    """An environment.yml: conda's own ``name=version``, and the part that pip installs."""
    for text in _texts([*entries, *(text for entry in entries for text in _texts(table(entry).get("pip")))]):
        plain = re.sub(r"^([\w.-]+)=(\d[\w.]*)(?:=\S+)?$", r"\1==\2", text.replace("pytorch=", "torch="))
        yield _stated_pin(document, text, plain)


def _stated_pin(document: Document, text: str, requirement: str, line: int = 0) -> Pin | None:
    """The pin of a requirement that stands in a file as `text`, or a note on one of a package under test that can't be
    read."""
    at = partial(document.place, line) if line else lambda: document.line(max(document.text.find(text), 0))
    try:
        return _requirement(requirement, at)
    except InvalidRequirement:
        begun = BEGUN.match(requirement)
        of_ours = begun and canonicalize_name(begun[1]) in STACK
        return _skipped(at(), f"{UNREAD}: {text[:60]}") if of_ours else None


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []


def _version(entry: object) -> str:
    return str((entry.get("version") if isinstance(entry, dict) else entry) or "")
