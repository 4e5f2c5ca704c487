"""The versions that the files of a project ask for, put together."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from faultline.audit.contents import few
from faultline.observations import ranges
from faultline.observations.ranges import Range
from faultline.projects.documents import Place
from faultline.projects.versions import Pin

MOST_WAYS = 100  # in which files ask for a package; each takes as many steps as there were before it
Sources = dict[str, tuple[Place, ...]]
# Requirements of one part of a project, as of one of several scripts, beside those of all.
OF_A_PART = re.compile(r"(?:requirements|reqs?)[_-][\w.-]+\.(?:txt|in)")


@dataclass(frozen=True)
class Notes:
    """Notes that say the same of several places: what stands before the places and behind, with these places."""

    places: dict[tuple[str, str], list[Place]] = field(default_factory=dict)

    def add(self, before: str, behind: str, places: Iterable[Place]) -> None:
        """Say something of some more places."""
        self.places.setdefault((before, behind), []).extend(places)

    def texts(self, more: Mapping[tuple[str, str], str] | None = None) -> list[str]:
        """Each note in a line, with `more` to say of it."""
        each = {key: f"{key[0]}{few(places)}{key[1]}" for key, places in self.places.items()}
        return [f"{text} {(more or {}).get(key, '')}".rstrip() for key, text in each.items()]


def versions(pins: Iterable[Pin], notes: Notes) -> tuple[dict[str, Range], Sources]:
    """The range of each package that all pins leave, and their places; no range for a contradiction."""
    each, asked = [*pins], dict[str, list[Pin]]()
    for pin in each:
        if pin.note:
            notes.add("", f": {pin.note}", [pin.source])
    for pin in _without_parts([pin for pin in dict.fromkeys(each) if not pin.note], notes):
        asked.setdefault(pin.package, []).append(pin)
    sources = {package: tuple(dict.fromkeys(pin.source for pin in some)) for package, some in asked.items()}
    packages: dict[str, Range] = {}
    for package, some in asked.items():
        ways = dict.fromkeys(pin.range for pin in some)
        if len(ways) <= MOST_WAYS:
            packages[package] = functools.reduce(ranges.intersect, ways, Range())
            continue
        before = f"{package} is asked for in {len(ways)} ways, so its version is taken as unknown: "
        notes.add(before, "", sources.pop(package))
    for package in [name for name, asked in packages.items() if asked.empty]:
        notes.add(f"no version of {package} fits all of these, so it is taken as unknown: ", "", sources[package])
        del packages[package]
    return packages, sources


def _without_parts(pins: Sequence[Pin], notes: Notes) -> list[Pin]:
    """The pins without those of a package for which the parts of a project ask in several ways."""
    parts: dict[tuple[str, str], list[Pin]] = {}
    for pin in pins:
        place = PurePath(pin.source.name)
        if OF_A_PART.fullmatch(place.name):
            parts.setdefault((str(place.parent), pin.package), []).append(pin)
    left_out: set[Pin] = set()
    for (_, package), several in parts.items():
        if len({pin.range.text for pin in several}) > 1:
            notes.add(f"{package} differs between ", ", so these are left out", [pin.source for pin in several])
            left_out.update(several)
    return [pin for pin in pins if pin not in left_out]
