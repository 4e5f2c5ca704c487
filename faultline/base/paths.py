"""Where things are: in a clone, or in an installed package, which has the catalogue within it."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
BUNDLE = PACKAGE / "bundle"  # pyproject.toml makes it, in a wheel
INSTALLED = BUNDLE.is_dir()
ROOT = BUNDLE if INSTALLED else PACKAGE.parent
REPROS = ROOT / "repros"
STACKS = ROOT / "stacks"
OBSERVATIONS = ROOT / "observations"
WRITTEN = Path.cwd() / ".faultline" if INSTALLED else ROOT
RESULTS = WRITTEN / "results"
GENERATED = WRITTEN / "generated"
