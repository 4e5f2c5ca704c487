"""What a command needs and isn't installed, in words: the extra that runs cells, and the libraries under test."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import metadata
from typing import TYPE_CHECKING

from faultline.base.errors import NotInstalled
from faultline.base.text import listing

if TYPE_CHECKING:
    from packaging.requirements import Requirement

RUNS = "run"  # the extra of pyproject.toml with what runs cells
WAYS = {
    "python": "name another environment with --python",
    "stack": "let --stack make one",
    "base": "a stack by --base",
}
"""What to do without the libraries here, by the option that a command has for it."""


def extra() -> list[Requirement]:
    """What the extra asks for, as the package's own metadata has it; nothing in a clone, which has no metadata."""
    from packaging.requirements import Requirement

    try:
        every = [Requirement(text) for text in metadata.requires("faultline") or ()]
    except metadata.PackageNotFoundError:
        return []
    return [
        each for each in every if each.marker and not each.marker.evaluate() and each.marker.evaluate({"extra": RUNS})
    ]


def of_extra(module: str) -> str:
    """How to get the extra, where that is why a module isn't there; empty where something else is."""
    wanted = extra()
    missing = [each.name for each in wanted if not _there(each.name)]
    if not missing or module.partition(".")[0] == "faultline":
        return ""
    pins = " ".join(f'"{each.name}{each.specifier}"' for each in wanted)
    return f"this command needs {listing(missing)}: pip install {pins}"


def stack(name: str, command: Callable[..., int]) -> str:
    """What to do where libraries under test aren't here, with the options that this command has for it."""
    takes = inspect.signature(command).parameters
    ways = [text for option, text in WAYS.items() if option in takes]
    if {"stack", "base"} & {*takes} and (needs := of_extra("")):
        ways[-1] += f" (then {needs})"
    return str(NotInstalled(name, *ways))


def _there(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False
