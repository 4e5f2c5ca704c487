"""The packages under test and their versions."""

import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

STACK = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed")
TODAY = "today"
OLDEST, NEWEST = 11, 13  # the minor versions of Python 3 that are supported, which the Makefile has as well
# What the suite imports on a stack; the rest is what these need. trl comes first, because the resolver gives way in
# what it meets last: as of 2026-07-01 it went back to trl 0.11 and datasets 1.1 for a newer transformers.
NEEDED = ("trl", *(name for name in STACK if name != "trl"), "datasets", "tokenizers", "safetensors", "pillow")


def versions() -> dict[str, str]:
    """The stack that is installed beside this interpreter, by distribution."""
    return {name: metadata.version(name) for name in STACK}


def untagged(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions by the packages' names in their order, without local build tags."""
    return {name: version.split("+")[0] for name, version in sorted(versions.items())}


def stack_name(versions: Mapping[str, str]) -> str:
    """The stack in one line, local build tags left out: ``accelerate 1.15.0, deepspeed 0.19.8, ...``."""
    return ", ".join(f"{name} {version}" for name, version in untagged(versions).items())


def pinned(requirements: Path) -> dict[str, str]:
    """The versions that a requirements file asks for, by normalised name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;#]+)", requirements.read_text(), re.MULTILINE)
    return {normalised(name): version for name, version in pins}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
