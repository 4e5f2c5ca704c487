"""is-safe of a change to requirements.txt."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED
from faultline.base.paths import RESULTS, ROOT
from faultline.cells.selection import Selection
from faultline.releases import is_safe, is_safe_view
from faultline.releases.changes import Answer, Comparison
from faultline.stacks import requests


def run(before: Path) -> int:
    """Ask `is-safe` about the pins that differ between an older requirements.txt and today's."""
    base, candidate = requests.bump(before, ROOT / "requirements.txt")
    if candidate:
        print(f"{base} -> {candidate}", flush=True)
        return is_safe.run(is_safe.Request(candidate, Selection(), base, workers=os.cpu_count() or 2))
    line = "Nothing to compare: no pin of the stack changes"
    print(line)
    # No run that could go on, but what automation looks for: an earlier summary of this change is out of date.
    folder = RESULTS / time.strftime("is-safe-%Y-%m-%dT%H-%M-%S")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.md").write_text(f"## {line}\n", encoding="utf-8")
    answer = is_safe_view.data(Answer("", "", (), Comparison(identical=True)))
    (folder / "verdict.json").write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return EXIT_AS_EXPECTED
