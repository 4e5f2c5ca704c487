"""The packages under test and their versions."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from faultline.base.paths import content

STACK = ("torch", "transformers", "trl", "peft", "accelerate", "deepspeed")
TODAY = "today"
OLDEST, NEWEST = 11, 13  # the minor versions of Python 3 that are supported, which the Makefile has as well
# What the suite imports on a stack; the rest is what these need. trl comes first, because the resolver gives way in
# what it meets last: as of 2026-07-01 it went back to trl 0.11 and datasets 1.1 for a newer transformers.
NEEDED = ("trl", *(name for name in STACK if name != "trl"), "datasets", "tokenizers", "safetensors", "pillow")
# What no rank starts without; the cells of images alone need the rest.
TO_START = tuple(name for name in NEEDED if name != "pillow")


@dataclass(frozen=True)
class Repository:
    """Where a package is developed on GitHub: `folder` has it within the repository, and a tag is ``v1.2.3``."""

    name: str
    folder: str = ""

    def line(self, version: str, file: str, number: int) -> str:
        """The address of a line of a file, such as ``trl/trainer/sft_trainer.py``, in a release."""
        return f"https://github.com/{self.name}/blob/v{version}/{self.folder}{file}#L{number}"


REPOSITORIES = {
    "torch": Repository("pytorch/pytorch"),
    "transformers": Repository("huggingface/transformers", "src/"),
    "trl": Repository("huggingface/trl"),
    "peft": Repository("huggingface/peft", "src/"),
    "accelerate": Repository("huggingface/accelerate", "src/"),
    "deepspeed": Repository("deepspeedai/DeepSpeed"),
    "datasets": Repository("huggingface/datasets", "src/"),
}


def versions() -> dict[str, str]:
    """The stack that is installed beside this interpreter, by distribution."""
    return {name: _installed(name) for name in STACK}


@functools.cache
def _installed(name: str) -> str:
    return metadata.version(name)


def untagged(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions by the packages' names in their order, without local build tags."""
    return {name: version.split("+")[0] for name, version in sorted(versions.items())}


def stack_name(versions: Mapping[str, str]) -> str:
    """The stack in one line, local build tags left out: ``accelerate 1.15.0, deepspeed 0.19.8, ...``."""
    return ", ".join(f"{name} {version}" for name, version in untagged(versions).items())


def pinned(requirements: Path) -> dict[str, str]:
    """The versions that a requirements file asks for, by normalised name."""
    pins = re.findall(r"^([\w.-]+)==([^\s;#]+)", content(requirements).decode(), re.MULTILINE)
    return {normalised(name): version for name, version in pins}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
