"""Ranges of versions: what requirements leave of a package's releases, and where that lies to one release."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version


@dataclass(frozen=True)
class Range:
    """The versions between two ends, each of which may be open (None) and may belong to it; `text` as it was asked."""

    text: str = ""
    low: Version | None = None
    low_in: bool = True
    high: Version | None = None
    high_in: bool = True

    @property
    def pinned(self) -> bool:
        return self.low is not None and self.low == self.high

    @property
    def empty(self) -> bool:
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and not (self.low_in and self.high_in))

    def below(self, version: Version) -> bool:
        """Whether all of it is older than a version."""
        return self.high is not None and (self.high < version or (self.high == version and not self.high_in))

    def above(self, version: Version) -> bool:
        """Whether all of it is newer than a version."""
        return self.low is not None and (self.low > version or (self.low == version and not self.low_in))

    def reaches(self, version: Version) -> bool:
        """Whether none of it is older than a version."""
        return self.low is not None and self.low >= version

    def holds(self, version: Version) -> bool:
        return not self.below(version) and not self.above(version)


def parse(text: str) -> Range:
    """The range of a specifier such as ``>=0.15,<0.20``; nothing is taken out of its middle (``!=``).

    Raises UsageError's cause, ValueError, for what is none.
    """
    try:
        specifiers = [*SpecifierSet(text)]
        found = Range(text.strip())
        for specifier in specifiers:
            found = both(found, _ends(specifier))
    except (InvalidSpecifier, InvalidVersion) as error:
        raise ValueError(f"{text!r} is not a range of versions") from error
    return Range(text.strip(), found.low, found.low_in, found.high, found.high_in)


def exactly(version: str) -> Range:
    """The range of one release; a build's own part behind the plus counts for nothing."""
    try:
        found = public(version)
    except InvalidVersion as error:
        raise ValueError(f"{version!r} is not a version") from error
    return Range(f"=={found}", found, True, found, True)


def is_version(text: str) -> bool:
    try:
        return bool(public(text))
    except InvalidVersion:
        return False


@functools.cache
def public(version: str) -> Version:
    return Version(Version(version).public)


def both(one: Range, other: Range) -> Range:
    """What two ranges share, which may be empty."""
    low, low_in = _tighter([(r.low, r.low_in) for r in (one, other) if r.low is not None], newest=True)
    high, high_in = _tighter([(r.high, r.high_in) for r in (one, other) if r.high is not None], newest=False)
    text = ",".join(dict.fromkeys(part for r in (one, other) for part in r.text.split(",") if part))
    return Range(text, low, low_in, high, high_in)


def _tighter(ends: Iterable[tuple[Version, bool]], newest: bool) -> tuple[Version | None, bool]:
    """The end that leaves less: at the same version, the one that doesn't belong to its range."""
    found: tuple[Version | None, bool] = (None, True)
    for version, inside in ends:
        if found[0] is None or (version > found[0] if newest else version < found[0]):
            found = (version, inside)
        elif version == found[0]:
            found = (version, inside and found[1])
    return found


def _ends(specifier: Specifier) -> Range:
    operator, text = specifier.operator, specifier.version
    if operator in ("!=", "==="):
        return exactly(text) if operator == "===" else Range()
    if text.endswith(".*"):
        version = Version(text.removesuffix(".*"))
        return Range("", version, True, _next(version, len(version.release)), False)
    version = public(text)
    match operator:
        case "==":
            return Range("", version, True, version, True)
        case "~=":
            return Range("", version, True, _next(version, len(version.release) - 1), False)
        case ">=" | ">":
            return Range("", low=version, low_in=operator == ">=")
        case _:
            return Range("", high=version, high_in=operator == "<=")


def _next(version: Version, parts: int) -> Version:
    """The first version behind all that begin with a version's first numbers."""
    kept = [*version.release[:parts]]
    kept[-1] += 1
    return Version(f"{version.epoch}!{'.'.join(map(str, kept))}")
