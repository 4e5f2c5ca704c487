"""The proof of exports: each file, run by itself from an empty folder, does what its cell does."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NotExportable
from faultline.base.paths import RESULTS
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.cells import rules
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.export import emit
from faultline.export.cell import place
from faultline.observations import measured
from faultline.observations.measured import quick
from faultline.runs import estimates
from faultline.runs.supervisor import inherited

FOLDER = RESULTS / "exports"
REPRODUCING = ("raises", "diverges", "misplaced", "hangs", "crashes")


@dataclass(frozen=True)
class Proof:
    """How the file of one cell ended: its number of lines, its seconds, and why it didn't reproduce, if so."""

    id: str
    lines: int
    seconds: float
    why: str = ""

    @property
    def file(self) -> Path:
        """Where the exported file is; its output is beside it, with the suffix .log."""
        return FOLDER / f"{self.id.replace('/', '~')}.py"


def reproducing() -> list[Cell]:
    """The cells of the default matrix whose failure shows."""
    return [
        cell
        for failure in failures().values()
        for cell, (outcome, signature) in measured.outcomes(failure).items()
        if outcome in REPRODUCING and rules.exportable(cell, signature)
    ]


def run_all(selection: Selection, workers: int = 1) -> int:
    """Export cells that reproduce, one of each variant if none is named, and run each file; exit code 1 if a file did
    something else than its cell."""
    selected = set(select(failures(), selection))
    cells = [cell for cell in reproducing() if cell in selected]
    if selection == Selection():
        cells = quick(cells)
    wrong = []
    announce(cells, workers)
    with ThreadPoolExecutor(workers) as pool:
        for number, proof in enumerate(pool.map(one, cells), 1):
            result = proof.why or "reproduced"
            print(f"{number}/{len(cells)} {proof.id}: {result}, {proof.lines} lines, {proof.seconds:.0f} s", flush=True)
            wrong += [proof] if proof.why else []
    for proof in wrong:
        print(f"differs: {proof.id}: {proof.why}; see {proof.file.parent.name}/{proof.file.name}")
    print(f"{len(cells) - len(wrong)} of {len(cells)} exports do what their cells do")
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def announce(cells: Collection[Cell], workers: int = 1) -> None:
    """Say before files are run how long that takes: each imports the libraries for itself."""
    seconds = sum(estimates.seconds_of(cells)) + len(cells) * estimates.START
    print(f"{count(len(cells), 'file')}, each run by itself: {estimates.about(seconds / workers)}", file=sys.stderr)


def one(cell: Cell) -> Proof:
    """Export one cell, run the file by itself, and keep both the file and its output."""
    try:
        text = emit.write(place(cell))
    except NotExportable as error:
        return Proof(cell.id, 0, 0.0, str(error))
    started = time.monotonic()
    code, output = run(text)
    last = output.rstrip().rpartition("\n")[2]
    why = "" if code == 0 and "REPRODUCED: " in last else f"not reproduced, exit code {code}"
    proof = Proof(cell.id, len(text.splitlines()), round(time.monotonic() - started, 1), why)
    FOLDER.mkdir(parents=True, exist_ok=True)
    proof.file.write_text(text, encoding="utf-8")
    proof.file.with_suffix(".log").write_text(output, encoding="utf-8")
    return proof


def run(text: str, launcher: tuple[str, ...] = ()) -> tuple[int, str]:
    """The exit code and output of a file in an empty folder, without this repository on Python's path."""
    unwanted = ("PYTHONPATH", "PYTHONSTARTUP")
    environment = {key: value for key, value in inherited(sys.executable).items() if key not in unwanted}
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        (Path(folder) / "repro.py").write_text(text, encoding="utf-8")
        done = subprocess.run(  # which ends: each rank has an alarm
            [sys.executable, *launcher, "repro.py"],
            cwd=folder,
            env=environment | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        return done.returncode, done.stdout
