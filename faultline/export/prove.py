"""The proof of exports: each file, run by itself from an empty folder, does what its cell does."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import operator
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from faultline import commands, known, preload
from faultline.catalogue import failures
from faultline.errors import UsageError
from faultline.export import facts, warm, write
from faultline.matrix import Cell, select
from faultline.ranks import inherited
from faultline.results import RESULTS

FOLDER = RESULTS / "exports"
REPRODUCING = ("raises", "diverges", "misplaced", "hangs", "crashes")
DEADLINE = 600  # seconds for one file
LIBRARIES = (
    *(name for name in preload.PRELOAD if not name.startswith(("tiny_models.", "faultline."))),
    *(f"{package}.{name}" for package, names in preload.TOUCH.items() for name in names),
)


@dataclass(frozen=True)
class Proof:
    """What became of one export: `lines` of the file, and how it ended; `why` says what is wrong, if anything is."""

    id: str
    lines: int
    exit: int
    seconds: float
    why: str = ""


def reproducing() -> list[Cell]:
    """The cells of the default matrix whose failure shows."""
    return [
        cell
        for failure in failures().values()
        for cell, (outcome, _) in known.outcomes(failure).items()
        if outcome in REPRODUCING
    ]


def prove(args: argparse.Namespace) -> bool:
    """Prove the selected cells, one line each, and say at the end which differ; `resume` keeps those proven before."""
    chosen = set(select(failures(), commands.selection(args)))
    cells = [cell for cell in reproducing() if cell in chosen]
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "proofs.jsonl"
    kept = file.read_text(encoding="utf-8").splitlines() if args.resume and file.exists() else []
    before = [Proof(**json.loads(line)) for line in kept]
    done = {proof.id: proof for proof in before if not proof.why}
    rest = [cell for cell in cells if cell.id not in done]
    with (
        file.open("a" if args.resume else "w", encoding="utf-8") as out,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(args.workers) as pool,
    ):
        idle = queue.SimpleQueue[Warm]()
        for _ in range(args.workers):
            idle.put(stack.enter_context(Warm()))

        def prove_one(cell: Cell) -> Proof:
            mine = idle.get()
            try:
                return one(cell, mine.run)
            finally:
                idle.put(mine)

        for number, proof in enumerate(pool.map(prove_one, rest), len(cells) - len(rest) + 1):
            done[proof.id] = proof
            out.write(json.dumps(asdict(proof)) + "\n")
            out.flush()
            what = proof.why or "reproduced"
            print(f"{number}/{len(cells)} {proof.id}: {what}, {proof.lines} lines, {proof.seconds:.0f} s", flush=True)
    wrong = [done[cell.id] for cell in cells if done[cell.id].why]
    for proof in wrong:
        print(f"differs: {proof.id}: {proof.why}; see {FOLDER.name}/{name(proof.id)}")
    print(f"{len(cells) - len(wrong)} of {len(cells)} exports do what their cells do")
    return not wrong


def one(cell: Cell, runs: Callable[[str], tuple[int, str]] | None = None) -> Proof:
    """Export one cell and run the file, by itself unless something else `runs` it."""
    try:
        text = write.write(facts.place(cell))
    except UsageError as error:
        return Proof(cell.id, 0, -1, 0.0, str(error))
    started = time.monotonic()
    code, output = (runs or run)(text)
    lines = len(text.splitlines())
    seconds = round(time.monotonic() - started, 1)
    if code == 0 and output.rstrip().splitlines()[-1:] and "REPRODUCED: " in output.splitlines()[-1]:
        return Proof(cell.id, lines, code, seconds)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / name(cell.id)).write_text(text, encoding="utf-8")
    (FOLDER / name(cell.id)).with_suffix(".log").write_text(output, encoding="utf-8")
    return Proof(cell.id, lines, code, seconds, f"not reproduced, exit code {code}")


def name(cell: str) -> str:
    return cell.replace("/", "~") + ".py"


def run(text: str, launcher: tuple[str, ...] = ()) -> tuple[int, str]:
    """The exit code and output of a file in an empty folder, without this repository on Python's path."""
    with tempfile.TemporaryDirectory(prefix="export-") as folder:
        file = Path(folder) / "repro.py"
        file.write_text(text, encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, *launcher, "repro.py"],
            cwd=folder,
            env=environment() | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        return process.returncode, output


def environment() -> dict[str, str]:
    """What a file's process inherits."""
    unwanted = ("PYTHONPATH", "PYTHONSTARTUP")
    return {key: value for key, value in inherited(sys.executable).items() if key not in unwanted}


class Warm:
    """Runs files in forks of one process that has imported their libraries, as a thousand of them would take hours."""

    def __enter__(self) -> Warm:
        self.process = subprocess.Popen(
            [sys.executable, "-I", warm.__file__, *LIBRARIES],
            env=functools.reduce(operator.or_, facts.environment("zero", False, True), environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # an interrupt lets the file end that runs
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def run(self, text: str) -> tuple[int, str]:
        """As `run`, for one file at a time."""
        assert self.process.stdin and self.process.stdout
        with tempfile.TemporaryDirectory(prefix="export-") as folder:
            (Path(folder) / "repro.py").write_text(text, encoding="utf-8")
            print(folder, file=self.process.stdin, flush=True)
            session = int(self.process.stdout.readline())
            late = threading.Timer(DEADLINE, os.killpg, (session, signal.SIGKILL))
            late.start()
            code = int(self.process.stdout.readline())
            late.cancel()
            return code, (Path(folder) / "output").read_text(encoding="utf-8", errors="replace")
