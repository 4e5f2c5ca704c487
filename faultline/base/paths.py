"""Where things are: in a clone, or in an installed package, which has the catalogue in it; what a file holds."""

import os
import stat
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
BUNDLE = PACKAGE / "bundle"  # pyproject.toml makes it, in a wheel
INSTALLED = BUNDLE.is_dir()
ROOT = BUNDLE if INSTALLED else PACKAGE.parent
LAB = ROOT / "lab"  # what searches and proves, in a clone; its programs run in ranks, as ours
REPROS = ROOT / "repros"
STACKS = ROOT / "stacks"
OBSERVATIONS = ROOT / "observations"
VARIABLE = "FAULTLINE_FOLDER"  # names another folder for what is written
WRITTEN = Path(os.environ.get(VARIABLE) or (".faultline" if INSTALLED else ROOT)).absolute()
RESULTS = WRITTEN / "results"
GENERATED = WRITTEN / "generated"

_OURS = f"{PACKAGE}{os.sep}", f"{LAB}{os.sep}"


def is_ours(file: str) -> bool:
    """Whether code of a file is the suite's own, by the file's absolute path."""
    return file.startswith(_OURS)


def real(path: str | Path) -> Path:
    """Where a path leads to; unlike `resolve`, it raises nothing for a loop of links."""
    return Path(os.path.realpath(path))


def content(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, or so many of them; raises OSError for what is none."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most) or b""  # nothing where it would have to be waited for
    finally:
        os.close(descriptor)
