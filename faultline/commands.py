"""What each command of the command line does; they return exit codes and raise UsageError for mistakes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console

from faultline import bless as blessing
from faultline import cli, expectations, matrix, readmes, results, runner, server, shards
from faultline import report as reports
from faultline.catalogue import REPROS, ROOT, failures
from faultline.errors import UsageError, unknown
from faultline.matrix import Cell, Selection
from faultline.report import junit, page, terminal
from faultline.results import Result, RunFolder


def run(args: argparse.Namespace) -> int:
    """Run the selected cells into a results folder, show tables, and write the page and junit.xml."""
    cells = wanted(args)
    for failure in failures().values():
        runner.rules(failure)
    if args.shard:
        cells = shards.part(cells, args.shard)
    if args.resume:
        folder = results.latest_run()
        known = resumable(folder, cells)
    else:
        folder, known = results.new_run(), []
        folder.describe(selection=vars(cli.selection(args)), shard=args.shard, cells=[cell.id for cell in cells])
    have = {entry["id"] for entry in known}
    measure([cell for cell in cells if cell.id not in have], args.workers, folder, known)
    found = folder.results()
    folder.describe(finished=True)
    return finish(folder, found)


def wanted(args: argparse.Namespace) -> list[Cell]:
    """The cells that the options select; refuses what can't be run here."""
    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {args.workers}")
    cells = matrix.select(failures(), cli.selection(args))
    devices = {cell.device for cell in cells}
    if len(devices) != 1:
        raise UsageError("give cells of one device at a time" if cells else "no cell is all of that")
    check_device(devices.pop())
    return cells


def measure(cells: Sequence[Cell], workers: int, folder: RunFolder, known: Sequence[Result] = ()) -> None:
    """Run cells behind a progress bar; each result is written to the folder as it comes."""
    writer = results.Writer(folder)
    folder.describe(finished=False)
    stack = ""
    try:
        with terminal.progress(Console(stderr=True), len(cells) + len(known), known) as advance:

            def done(entry: Result) -> None:
                nonlocal stack
                writer.add(entry)
                advance(entry)
                if entry["stack"] not in ("", stack):
                    stack = entry["stack"]
                    folder.describe(stack=stack)

            runner.run_all(cells, workers, done)
    finally:
        writer.close()


def finish(folder: RunFolder, found: Sequence[Result]) -> int:
    """Tables, junit.xml and page of a run; the exit code says whether all of it was expected."""
    junit.write(folder.path / "junit.xml", found)
    page.write(folder.path / "report.html", found, folder.facts())
    console = Console()
    terminal.tables(console, found)
    terminal.unexpected(console, found)
    console.print(f"results: {_short(folder.path)}/cells.jsonl, junit.xml, report.html", highlight=False)
    return cli.EXIT_AS_EXPECTED if all(map(reports.as_expected, found)) else cli.EXIT_UNEXPECTED


def resumable(folder: RunFolder, cells: Iterable[Cell]) -> list[Result]:
    """What an interrupted run already has; refuses one of another stack or of other cells."""
    facts = folder.facts()
    same_stack(folder)
    if set(facts.get("cells", ())) != {cell.id for cell in cells}:
        raise UsageError(f"{folder.path.name} was asked for other cells; give the same options or start a new run")
    return folder.results()


def same_stack(folder: RunFolder) -> None:
    """Refuse a run of other versions than are installed here."""
    here = results.stack_name(server.versions())
    theirs = folder.facts().get("stack", here)
    if theirs != here:
        raise UsageError(f"{folder.path.name} was run on another stack ({theirs}); start a new run")


def check_device(device: str) -> None:
    """Refuse CUDA where there is no GPU at all; a child looks, because this process never imports torch."""
    if device != "cuda":
        return
    look = [sys.executable, "-c", "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"]
    if subprocess.run(look, capture_output=True, check=False).returncode:
        raise UsageError("DEVICE=cuda: torch sees no GPU here; leave DEVICE out to run on the CPU with gloo")


def list_cells(args: argparse.Namespace) -> int:
    """The cells of a selection: how many of each failure, and what the default matrix leaves out and why."""
    selection = cli.selection(args)
    cells = matrix.select(failures(), selection)
    if args.ids:
        print(*(cell.id for cell in cells), sep="\n")
        return cli.EXIT_AS_EXPECTED
    terminal.overview(Console(), cells, matrix.left_out(failures(), selection.device))
    return cli.EXIT_AS_EXPECTED


def show(args: argparse.Namespace) -> int:
    """A failure's record, variants and claims, with verdicts from the newest run that has its cells."""
    if args.failure not in failures():
        raise unknown("failure", args.failure, list(failures()))
    found = results.latest_run().results() if (results.RESULTS / "latest").exists() else []
    failure = failures()[args.failure]
    terminal.failure(Console(), failure, reports.verdicts(failure, found))
    return cli.EXIT_AS_EXPECTED


def env(args: argparse.Namespace) -> int:
    """Versions, devices and the settings that ranks get."""
    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "stack": server.versions(),
        "suite": {name: metadata.version(name) for name in ("pytest", "rich", "psutil")},
        "compiler": shutil.which("g++") or "none (none is needed)",
        "gpus": _gpus(),
        "settings": server.environment(),
    }
    if args.json:
        print(json.dumps(facts, indent=2))
    else:
        terminal.environment(Console(), facts)
    return cli.EXIT_AS_EXPECTED


def _gpus() -> list[str]:
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return told.stdout.splitlines() if told.returncode == 0 else []


def bless(args: argparse.Namespace) -> int:
    """Rewrite expected.toml of the run's failures and show the difference."""
    folder = chosen(args.run)
    found = folder.results()
    blessing.refuse(found, bool(folder.facts().get("finished")))
    same_stack(folder)
    if args.failure and args.failure not in failures():
        raise unknown("failure", args.failure, list(failures()))
    changed = False
    for name in sorted({entry["failure"] for entry in found} & ({args.failure} if args.failure else set(failures()))):
        failure = failures()[name]
        file = REPROS / name / "expected.toml"
        observed = {cell: told for cell, told in reports.outcomes(found).items() if cell.failure == name}
        cells = matrix.select(failures(), Selection(failure=(name,), device=next(iter(observed)).device))
        text = blessing.bless(failure, observed, server.versions(), expectations.load(file), cells)
        difference = blessing.difference(file.read_text(encoding="utf-8") if file.exists() else "", text, file)
        if difference:
            changed = True
            print(difference, end="")
            if not args.check:
                file.write_text(text, encoding="utf-8")
    if not changed:
        print("nothing to change: the rules say what the run showed")
    return cli.EXIT_UNEXPECTED if changed and args.check else cli.EXIT_AS_EXPECTED


def chosen(name: str) -> RunFolder:
    """A results folder by path, or the newest."""
    if not name:
        return results.latest_run()
    folder = RunFolder(Path(name).resolve())
    folder.facts()
    return folder


def readme(args: argparse.Namespace) -> int:
    """Rewrite the measured part of each failure's README."""
    folder = chosen(args.run)
    found = folder.results()
    for failure in failures().values():
        wanted = {cell.id for cell in matrix.select(failures(), Selection(failure=(failure.name,)))}
        have = {entry["id"] for entry in found if entry["failure"] == failure.name}
        if have and wanted - have:
            raise UsageError(
                f"{folder.path.name} lacks {len(wanted - have)} of {failure.name}'s cells: run all of them"
            )
        if have:
            print(readmes.rewrite(REPROS / failure.name / "README.md", failure, found))
    if not {cell.id for cell in matrix.select(failures(), Selection())} - {entry["id"] for entry in found}:
        print(readmes.rewrite_noise(ROOT / "README.md", found))
    return cli.EXIT_AS_EXPECTED


def durations(args: argparse.Namespace) -> int:
    """Record how long cells took, so that shards of later runs are of equal length."""
    shards.record(chosen(args.run).results())
    return cli.EXIT_AS_EXPECTED


def report(args: argparse.Namespace) -> int:
    """Show a run again."""
    folder = chosen(args.run)
    return finish(folder, folder.results())


def merge(args: argparse.Namespace) -> int:
    """Put shards together in a new results folder and say what is missing."""
    folder, missing = shards.merge([chosen(name) for name in args.runs])
    code = finish(folder, folder.results())
    if missing:
        print(f"missing: {len(missing)} cells that no shard has, for instance {missing[0]}")
        return cli.EXIT_UNEXPECTED
    return code


def repeat(args: argparse.Namespace) -> int:
    from faultline import reliability

    return reliability.repeat(wanted(args), args.workers)


def chaos(args: argparse.Namespace) -> int:
    from faultline import reliability

    if args.cells < 1 or not 0 <= args.rate <= 1:
        raise UsageError("--cells must be at least 1, and --rate a share between 0 and 1")
    return reliability.chaos(args.cells, args.rate, args.seed, args.workers)


def bench(args: argparse.Namespace) -> int:
    from faultline import bench as measuring

    return measuring.main()


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
