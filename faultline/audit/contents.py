"""The statements of a project's files: settings, and the versions that they ask for."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.audit import arguments, python_calls, trainings
from faultline.audit.engines import Statement
from faultline.base.errors import NotRecognised, UsageError
from faultline.base.text import one_line
from faultline.observations.ranges import Range
from faultline.projects import files, installed, versions
from faultline.projects.documents import Document, table
from faultline.projects.files import Candidate
from faultline.projects.versions import Pin

ENGINE_GIVEN = re.compile(r"""^[ \t]*["']?(?:deepspeed|fsdp)["']?[ \t]*:""", re.MULTILINE)  # also if it is none
IGNORED = re.compile(r"#\s*faultline:\s*ignore\[([\w\s,-]{1,2000})\]")
CLOSED = "can't be read, or leads out of the folder"
MOST = 3  # files and places that a line names


@dataclass(frozen=True, eq=False)
class Content:
    """What a file states, or one of the trainings in it: the kind of its settings and what they say, if it has any, and
    versions. Of one kind, each may be what runs.

    `path` is the file, and `names` are those that a command names, or that say something of code; the `title` says
    which command it is. With `any_launch`, any of accelerate's configs may be what it is launched with, if it doesn't
    say the engine. `ignored` are the failures that the file asks to ignore.
    """

    kind: str = ""
    statements: Sequence[Statement] = ()
    pins: Sequence[Pin] = ()
    path: Path = Path()
    names: frozenset[Path] = frozenset()
    title: str = ""
    any_launch: bool = False
    ignored: tuple[str, ...] = ()


def read_file(candidate: Candidate) -> list[Content]:
    """The contents of a file; raises NotRecognised for one that states nothing, and UsageError for one that can't be
    read.

    A script has as many trainings as it has commands, and code as many as it makes arguments.
    """
    path, name = candidate.path, candidate.name
    if files.is_environment(path):
        return [Content(pins=installed.environment(path, name))]
    document = files.read(path, name)
    ignored = tuple(word for words in IGNORED.findall(document.text) for word in re.findall(r"\w+", words))
    return [replace(content, path=path.resolve(), ignored=ignored + content.ignored) for content in _contents(document)]


def _contents(document: Document) -> list[Content]:
    """The contents of a document, still without their path."""
    path, name = document.path, document.name
    if files.is_code(name):
        each = python_calls.trainings(document)
        contents = [Content("code", statements, names=names, any_launch=True) for statements, names in each]
        if path.name == "setup.py" and (asked := versions.of_setup(document)):
            contents.append(Content(pins=asked))
    elif files.is_script(name, document.text):
        contents = [
            Content("command", each.statements, names=each.names, title=each.title, any_launch=each.any_launch)
            for each in trainings.trainings(document)
        ]
    else:
        settings, pins = arguments.read(document), versions.read(document)
        known = settings is not None or pins is not None
        ignored = _ignored(document)
        pins = [*(pins or []), *_unread_ignore(document)]
        content = Content(
            *(settings or ("", [])), pins, any_launch=not ENGINE_GIVEN.search(document.text), ignored=ignored
        )
        contents = [content] if known or ignored else []
    if not contents:
        raise NotRecognised(
            f"{name} is not recognised: give requirements or a lock file, an accelerate or DeepSpeed config, training "
            "arguments in YAML or JSON, or a script or Python file that sets them"
        )
    return contents


def _ignored(document: Document) -> tuple[str, ...]:
    """The failures that the table [tool.faultline.audit] of pyproject.toml asks to ignore."""
    listed = table(document.data, "tool", "faultline", "audit").get("ignore")
    return tuple(each for each in listed if isinstance(each, str)) if isinstance(listed, list) else ()


def _unread_ignore(document: Document) -> list[Pin]:
    """A note on an `ignore` that stands one table too high in pyproject.toml."""
    if "ignore" not in table(document.data, "tool", "faultline"):
        return []
    start = max(document.text.find("[tool.faultline]"), 0)
    place = document.line(max(document.text.find("ignore", start), start))
    return [Pin("", Range(), place, "`ignore` is not read here: write it below [tool.faultline.audit]")]


def read_files(paths: Sequence[str], environment: bool, python: str) -> tuple[dict[str, list[Content]], list[str]]:
    """The contents of each file, by its name, and notes on those that can't be read."""
    paths = paths or ([] if environment or python else ["."])
    candidates, unreadable, left_out = files.find(paths)
    contents: dict[str, list[Content]] = {}
    skipped: list[str] = []
    notes: list[str] = []
    for candidate in candidates:
        try:
            contents[candidate.name] = read_file(candidate)
        except NotRecognised:
            if candidate.named:
                raise
            skipped += [] if files.is_program(candidate.name) else [candidate.name]
        except UsageError as error:
            if candidate.named:
                raise
            notes.append(f"skipped: {error}")
    if paths and not contents:
        closed = [f"{place} {CLOSED}" for place in unreadable]
        why = f" ({few([*notes, *closed])})" if notes or closed else ""
        raise UsageError(f"no requirements, lock file or training config in {few(paths)}{why}; name files or a folder")
    if environment or python:
        prefix = installed.of_python(python) if python else installed.active()
        contents[f"what is installed in {prefix}"] = [Content(pins=installed.environment(prefix, "installed"))]
        if not python and prefix == Path(sys.prefix):
            notes.append("no other environment is active, so this is Faultline's own; activate yours or give --python")
    notes = [*notes[:MOST], *([f"skipped: {len(notes) - MOST} more files"] if len(notes) > MOST else [])]
    notes += [f"skipped (not recognised): {few(skipped)}"] if skipped else []
    notes += [f"skipped ({CLOSED}): {few(unreadable)}"] if unreadable else []
    return contents, notes + left_out


def few(texts: Sequence[object]) -> str:
    """The first texts in one line, each once, and how many more there are."""
    each = [*dict.fromkeys(map(str, texts))]
    more = f" and {len(each) - MOST} more" if len(each) > MOST else ""
    return one_line("; ".join(each[:MOST]) + more)
