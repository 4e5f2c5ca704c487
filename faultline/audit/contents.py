"""The files of a project, and what each of them states."""

import sys
from collections.abc import Sequence
from pathlib import Path

from faultline.audit import reading
from faultline.audit.reading import Content
from faultline.base.errors import NotRecognised, UsageError
from faultline.base.text import one_line
from faultline.projects import files, installed

CLOSED = "can't be read, or leads out of the folder"
MOST = 3  # files and places that a line names


def read(paths: Sequence[str], environment: bool, python: str) -> tuple[dict[str, list[Content]], list[str]]:
    """What each file states, by its name, and notes on those that can't be read."""
    paths = paths or ([] if environment or python else ["."])
    candidates, unreadable, left_out = files.find(paths)
    contents: dict[str, list[Content]] = {}
    skipped: list[str] = []
    notes: list[str] = []
    for candidate in candidates:
        try:
            contents[candidate.name] = reading.read(candidate)
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
