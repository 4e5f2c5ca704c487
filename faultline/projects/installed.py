"""The packages of an environment, by the names of its metadata folders: nothing of it is imported or run."""

import os
import re
import sys
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.text import one_line
from faultline.projects import versions
from faultline.projects.documents import Place
from faultline.projects.versions import Pin

PACKAGES = ("lib*/python*/site-packages", "lib/python*/dist-packages", "local/lib/python*/dist-packages")


def environment(prefix: Path, name: str) -> list[Pin]:
    """The versions in an environment."""
    packages = (each.split("-", 1) for each in _installed(prefix) if "-" in each)
    return [
        pin for package, version in packages if (pin := versions.pinned(package, f"=={version}", lambda: Place(name)))
    ]


def active() -> Path:
    """The active environment of the person at the terminal, or else that of this process."""
    here = Path(sys.prefix)
    named = (Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name))
    return next((path for path in named if path.is_dir() and path.resolve() != here.resolve()), here)


def of_python(name: str) -> Path:
    """The environment of an interpreter, or the folder of one; raises UsageError where there is none."""
    path = Path(name)
    if path.is_file() and not re.match(r"python|pypy", path.name):
        raise UsageError(f"{one_line(name)} is not a Python interpreter")
    folder = path if path.is_dir() else path.absolute().parent.parent  # not resolved: the link is in the environment
    if not (path.is_dir() or (path.is_file() and path.parent.name == "bin")) or not _installed(folder):
        raise UsageError(f"{one_line(name)} is neither an interpreter nor an environment with packages")
    return folder


def _installed(prefix: Path) -> list[str]:
    """The packages of an environment, as ``trl-0.15.2``."""
    metadata = (folder for pattern in PACKAGES for folder in prefix.glob(f"{pattern}/*.dist-info"))
    return sorted(folder.name.removesuffix(".dist-info") for folder in metadata)
