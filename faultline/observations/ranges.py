"""Ranges of versions: the releases that requirements allow, and where they lie to one release."""

import functools
import re
from dataclasses import dataclass

from packaging.ranges import VersionRange
from packaging.specifiers import SpecifierSet
from packaging.version import Version

BUILD = re.compile(r"\+[\w.]+")  # such as +cu124, which is no other release
WILDCARD = re.compile(r"==\s*([\w.!]+)\.\*")


ANY = VersionRange.full(prereleases=True)


@dataclass(frozen=True)
class Range:
    """The versions that a requirement allows: `text` as it was asked, and the release where it pins one."""

    text: str = ""
    allowed: VersionRange = ANY
    pinned: Version | None = None

    @property
    def open(self) -> bool:
        """Whether every version is allowed."""
        return self == Range(self.text)

    @property
    def empty(self) -> bool:
        return self.allowed.is_empty

    def holds(self, version: Version) -> bool:
        return version in self.allowed

    def below(self, version: Version) -> bool:
        """Whether all of it is older than a version."""
        return self.allowed.is_disjoint(_allowed(f">={version}"))

    def reaches(self, version: Version) -> bool:
        """Whether none of it is older than a version."""
        return _within(self.allowed, ">=", version)

    def ends_by(self, version: Version) -> bool:
        """Whether none of it is newer than a version."""
        return _within(self.allowed, "<=", version)


# An audit asks the same of thousands of cells.
@functools.cache
def _within(versions: VersionRange, operator: str, version: Version) -> bool:
    return versions.is_subset(_allowed(f"{operator}{version}"))


@functools.cache
def _allowed(text: str) -> VersionRange:
    return SpecifierSet(text, prereleases=True).to_range()


def parse(text: str) -> Range:
    """The range of a specifier such as ``>=0.15,<0.20``; raises ValueError for a text that is none."""
    plain = BUILD.sub("", text).replace("===", "==")
    try:
        exact = [each.version for each in SpecifierSet(plain) if each.operator == "==" and "*" not in each.version]
        # Unlike packaging, no pre-release of the first release belongs to ==1.2.*: pip takes none.
        allowed = _allowed(WILDCARD.sub(r"\g<0>,>=\1", plain))
    except ValueError as error:  # InvalidSpecifier, InvalidVersion, or a number of more digits than Python reads
        raise ValueError(f"{text!r} is not a range of versions") from error
    return Range(text.strip(), allowed, Version(exact[0]) if exact else None)


@functools.cache
def exactly(version: str) -> Range:
    """The range of one release, whichever build of it."""
    return parse(f"=={public(version)}")


def is_version(text: str) -> bool:
    try:
        return bool(public(text))
    except ValueError:
        return False


@functools.cache
def public(version: str) -> Version:
    """A version without the build behind its plus."""
    return Version(Version(version).public)


def intersect(one: Range, other: Range) -> Range:
    """The versions that two ranges share, if any."""
    text = ",".join(dict.fromkeys(part for each in (one, other) for part in each.text.split(",") if part))
    return Range(text, one.allowed & other.allowed, one.pinned or other.pinned)
