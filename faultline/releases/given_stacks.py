"""The sides of a comparison as people have them: requirements, a name, a date, a file of versions, an interpreter."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import InvalidRequirement
from packaging.utils import canonicalize_name

from faultline.base.errors import UsageError
from faultline.base.packages import NEEDED, STACK
from faultline.base.text import listing, one_line
from faultline.observations import ranges
from faultline.observations.ranges import Range
from faultline.projects import files, installed, versions
from faultline.projects.versions import Pin
from faultline.stacks import requests
from faultline.stacks.environments import pins
from faultline.stacks.requests import Stack

SUFFIXES = (".txt", ".in", ".lock", ".toml", ".json", ".yml", ".yaml")


@dataclass(frozen=True)
class Side:
    """What one side asks for, as requirements, a stack's name or a date.

    Of a file, `notes` say what is no version, and `absent` are the packages of the stack that it doesn't name.
    """

    name: str
    text: str
    notes: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


def baseline(text: str, python: str) -> tuple[Stack, tuple[str, ...]]:
    """The stack that is compared with, and what to know of it; an interpreter's packages are read, and not run."""
    pins = requests.base()
    here = versions_in(pins)
    nothing_here = pins != requests.installed()
    taken = "as in Faultline's own pins" if nothing_here else "as installed here"
    if python:
        prefix = installed.of_python(python)
        name = f"the environment of {one_line(python)}"
        side = of_pins(name, installed.environment(prefix, name), here, taken)
    else:
        side = read(text, here, taken)
    if side.text == text:
        stack = requests.parse(text)
        filled = (f"what {one_line(text)} leaves open is taken {taken}",) if stack.base and nothing_here else ()
        return stack, side.notes + filled
    stack = replace(requests.changed(side.text, requests.base()), name=side.name)
    absent = ", ".join(f"{package} {here[package]}" for package in side.absent if package in here)
    return stack, side.notes + (
        (f"{side.name} doesn't name these, which are taken {taken}: {absent}",) if absent else ()
    )


def read(text: str, below: Mapping[str, str], taken: str) -> Side:
    """One side: what isn't the name of a file stays as it is.

    `below` has the versions that stay where a file doesn't pin one, and `taken` says whose they are. Raises UsageError
    for a file without versions of the stack.
    """
    words = text.split()
    a_file = os.path.isfile(text) or (len(words) == 1 and text.endswith(SUFFIXES) and "==" not in text)
    if text in requests.named() or not a_file:
        if words and os.path.isdir(text) and text not in NEEDED:  # in a clone of trl, trl is still the package
            raise UsageError(f"{one_line(text)} is a folder: name its lock or requirements file")
        return Side(" ".join(words), text)
    document = files.read(Path(text))
    asked = versions.read(document)
    if asked is None:
        raise UsageError(f"{document.name} is neither a requirements nor a lock file")
    return of_pins(document.name, asked, below, taken)


def of_pins(name: str, asked: Iterable[Pin], below: Mapping[str, str], taken: str) -> Side:
    """Pins of the stack's packages as requirements; a range that the version below it fits asks for nothing."""
    wanted: dict[str, Range] = {}
    notes = []
    for pin in asked:
        if pin.note:
            notes.append(f"{pin.source}: {pin.note}")
        else:
            wanted[pin.package] = ranges.intersect(wanted.get(pin.package, Range()), pin.range)
    if not wanted:
        raise UsageError(f"{name} names none of {listing(STACK)}, and nothing else is compared")
    words = []
    for package, each in wanted.items():
        if each.empty:
            raise UsageError(f"no version of {package} fits all that {name} asks for: {each.text}")
        if each.pinned:
            words.append(f"{package}=={each.pinned}")
            continue
        there = below.get(package, "")
        fits = ranges.is_version(there) and each.holds(ranges.public(there))
        which = f"{there} {taken}" if fits else "the newest release that fits"
        notes.append(f"{name} pins no {package} ({each.text or 'any version'}): taken is {which}")
        words += [] if fits else [f"{package}{each.text.replace(' ', '')}"]
    return Side(name, " ".join(words), tuple(notes), tuple(package for package in STACK if package not in wanted))


def versions_in(lines: Iterable[str]) -> dict[str, str]:
    """The versions of the packages under test in pins, ``name==version``."""
    return {name: version for name, version in pins("\n".join(lines)).items() if name in STACK}


def known_versions(stack: Stack) -> dict[str, str]:
    """The versions of a stack that are known before anything is resolved."""
    if stack.here:
        return pins("\n".join(requests.installed()))
    return pins("\n".join(text for text in stack.requirements if "==" in text and ".*" not in text))


def expected_versions(stack: Stack) -> dict[str, str]:
    """The versions that a stack is known to have, and those that it keeps where it can."""
    return versions_in(stack.base) | known_versions(stack)


def differing(before: Mapping[str, str], after: Mapping[str, str], removed: bool = True) -> list[tuple[str, str, str]]:
    """Name, old and new version of each package that differs; an empty version is that of one that isn't there."""
    names = sorted({*after, *(before if removed else ())})
    return [(name, before.get(name, ""), after.get(name, "")) for name in names if before.get(name) != after.get(name)]


def is_same(base: Stack, text: str) -> bool:
    """Whether a candidate is its baseline: it has its name, or pins just the versions that it is known to have."""
    there = known_versions(base)
    return text == base.name or all(_pins(word, there) for word in text.split())


def _pins(word: str, there: Mapping[str, str]) -> bool:
    """Whether a requirement pins the version that is there."""
    try:
        asked = requests.parsed_requirement(word)
    except InvalidRequirement:  # a date
        return False
    version = there.get(canonicalize_name(asked.name), "")
    exact = [each.operator for each in asked.specifier] == ["=="] and ranges.is_version(version)
    return exact and asked.specifier.contains(version, prereleases=True)
