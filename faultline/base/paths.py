"""Where things are in a clone."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPROS = ROOT / "repros"
STACKS = ROOT / "stacks"
RESULTS = ROOT / "results"
OBSERVATIONS = ROOT / "observations"
GENERATED = ROOT / "generated"
