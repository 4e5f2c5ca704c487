"""Where things are: in a clone, or in an installed package, which has the catalogue within it."""

import os
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
