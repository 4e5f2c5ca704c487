"""Stacks: what to install of the libraries under test, by name, as of a date, or by requirements."""

import datetime
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from faultline.base.errors import UsageError, unknown
from faultline.base.packages import NEEDED, TODAY, pinned
from faultline.base.paths import ROOT, STACKS
from faultline.base.text import cut, is_slip

# The suite needs trl 0.15 and transformers 4.49, and the rest of the stack as it was then.
EARLIEST = datetime.date(2025, 3, 1)
# An old release may need a setuptools that can still build what it comes with, on a Python that it didn't know.
UNDATED = ("torch", "setuptools")
# What older releases import and don't declare, as other packages brought it: TRL to 1.14.1, torch to 2.6 for DeepSpeed.
UNDECLARED = ("requests", "setuptools")
ARCHIVES = (".whl", ".tar.gz", ".zip")
LONGEST = 200  # characters of a requirement that are shown

AS_OF = re.compile(r"^#\s*as of:\s*(\S+)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Stack:
    """What to resolve: requirements, among what there was on a date; the base's versions are kept where they can be.

    `asof` is ``YYYY-MM-DD`` or empty; `base` holds pins, ``name==version``, which the resolver prefers.
    """

    name: str
    requirements: tuple[str, ...] = NEEDED
    asof: str = ""
    base: tuple[str, ...] = ()

    @property
    def here(self) -> bool:
        """Whether it is what this process runs on, so that there is nothing to resolve."""
        return self.name == TODAY


def named() -> dict[str, Path]:
    """The requirement files in stacks/ by name."""
    return {file.stem: file for file in sorted(STACKS.glob("*.txt"))}


def whole(text: str) -> bool:
    """Whether a text names a whole stack, by its name or a date, and no requirements that change one."""
    return text.strip() in named() or bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text.strip()))


def parse(text: str) -> Stack:
    """A stack's name, a date, or requirements with spaces between them; raises UsageError for anything else.

    Requirements change what is installed here, and nothing else as far as they leave the choice.
    """
    words = text.split()
    if not words:
        raise UsageError("a stack is a name from stacks/, a date such as 2025-06-01, or requirements: trl==1.12.0")
    if whole(text):
        return read(words[0]) if words[0] in named() else dated(words[0])
    if len(words) == 1 and re.fullmatch(r"[\w.-]+", words[0]) and canonicalize_name(words[0]) not in NEEDED:
        raise unknown("stack", words[0], list(named()))
    return changed(text, base())


def changed(text: str, base: Iterable[str], asof: str = "") -> Stack:
    """Requirements with spaces between them, and the pins of a base as far as they leave the choice.

    Raises UsageError for a package that is nearly one of those that the suite needs: it would change nothing of them.
    """
    words = text.split()
    given = {requirement(word): word for word in words}
    if len(given) < len(words):
        raise UsageError(f"{text!r} names a package twice")
    pins = {requirement(pin): pin for pin in base}
    for name in given:
        if name not in NEEDED and name not in pins and is_slip(name, NEEDED):
            raise unknown("package", name, NEEDED)
    rest = tuple(pin for name, pin in pins.items() if name not in given)
    return Stack(" ".join(words), ordered({name: name for name in UNDECLARED} | given), asof, rest)


def ordered(given: Mapping[str, str]) -> tuple[str, ...]:
    """Requirements by package in the order in which they are to be resolved, with those that the suite needs."""
    return (*(given.get(name, name) for name in NEEDED), *(text for name, text in given.items() if name not in NEEDED))


def read(name: str) -> Stack:
    """A stack of stacks/; a line ``# as of: YYYY-MM-DD`` dates what the file leaves open."""
    if name == TODAY:
        return Stack(TODAY, ())
    content = named()[name].read_text()
    lines = [line.split("#")[0].strip() for line in content.splitlines()]
    pins = {requirement(line): line for line in lines if line}
    dates = AS_OF.findall(content)
    asof = day(dates[0]).isoformat() if dates else ""
    return Stack(name, ordered(pins), asof)


def dated(text: str) -> Stack:
    """The newest releases of everything on a date."""
    date = day(text)
    if date < EARLIEST:
        raise UsageError(f"{text} is too early: the first date that can be used is {EARLIEST}")
    if date > datetime.date.today():
        raise UsageError(f"{text} is in the future")
    return Stack(date.isoformat(), asof=date.isoformat())


def day(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a date such as 2025-06-01") from None


def parsed_requirement(text: str) -> Requirement:
    """A requirement; raises InvalidRequirement also for one that packaging itself chokes on, later or by another error.

    It reads a version when that is compared, and follows each bracket of a marker.
    """
    try:
        parsed = Requirement(text)
        for each in parsed.specifier:
            int(max(re.findall(r"\d+", each.version), key=len, default="0"))  # Python bounds its digits
    except (ValueError, RecursionError) as error:
        raise InvalidRequirement(cut(error, LONGEST)) from None
    return parsed


def requirement(text: str) -> str:
    """The normalised name of the package that a requirement is about; refuses a folder, which changes unnoticed."""
    try:
        parsed = parsed_requirement(text)
    except InvalidRequirement:
        raise UsageError(f"{cut(text, LONGEST)!r} is not a requirement such as trl==1.12.0") from None
    place = urlsplit(parsed.url or "")
    if parsed.url and place.scheme in ("", "file") and not place.path.endswith(ARCHIVES):
        # Environments are kept under what was resolved, and that is the folder's name, whatever is in it.
        raise UsageError(
            f"{text!r} is a folder, and its environment would never see a change of the code; commit it and give "
            f"{parsed.name}@git+file:///FOLDER@COMMIT, or build a wheel and give {parsed.name}@file:///WHEEL"
        )
    return canonicalize_name(parsed.name)


@functools.cache
def installed() -> tuple[str, ...]:
    """What is installed beside this process, pinned: ``name==version``."""
    versions = {canonicalize_name(each.metadata["Name"]): each.version for each in metadata.distributions()}
    return tuple(f"{name}=={version}" for name, version in sorted(versions.items()) if name != "pip")


def base() -> tuple[str, ...]:
    """The pins that requirements change: what is installed, or the stack that Faultline pins where none is."""
    here = installed()
    if any(requirement(pin) == "torch" for pin in here):
        return here
    return tuple(f"{name}=={version}" for name, version in pinned(ROOT / "requirements.txt").items() if name in NEEDED)
