"""What each command of the command line does; they return exit codes and raise UsageError for mistakes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console

from faultline import bench as benchmark
from faultline import bless as blessing
from faultline import (
    environments,
    expectations,
    matrix,
    overview,
    readmes,
    reliability,
    results,
    runner,
    runs,
    server,
    shards,
    stacks,
    verdicts,
)
from faultline import report as reports
from faultline.catalogue import REPROS, ROOT, failures
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError, unknown
from faultline.known import quick
from faultline.matrix import Cell, Selection
from faultline.report import junit, listing, one_line, page, terminal
from faultline.results import Result, RunFolder

UNCHANGED = "Nothing to compare: no pin of the stack changes"  # .github/post.sh knows it
OPTIONS = tuple(axis.removesuffix("_size") for axis in matrix.AXES)  # that narrow the matrix


def run(args: argparse.Namespace) -> int:
    """Run the selected cells into a results folder, show tables, and write the page and junit.xml."""
    cells = wanted(args)
    for failure in failures().values():
        runner.rules(failure)
    if args.quick:
        cells = quick(cells)
    if args.shard:
        cells = shards.part(cells, args.shard)
    stack = stacks.parse(args.stack)
    kind = "run" if stack.here else "stack"
    environment = environments.ready(stack)
    if args.resume:
        folder = results.latest_run(kind=kind)
        known = runs.resumable(folder, cells, environment.versions)
    else:
        folder, known = results.new_run(kind=kind), []
        folder.describe(selection=vars(selection(args)), shard=args.shard, cells=[cell.id for cell in cells])
        folder.describe(asked="" if stack.here else args.stack)
    have = {entry["id"] for entry in known}
    runs.measure([cell for cell in cells if cell.id not in have], args.workers, folder, known, environment.python)
    found = folder.results()
    folder.describe(finished=True)
    return finish(folder, found)


def selection(args: argparse.Namespace) -> Selection:
    """What the options ask for; whole cells leave nothing to narrow, so no other option goes with them."""
    others = [f"--{axis}" for axis in OPTIONS if getattr(args, axis)]
    if args.cell and others:
        raise UsageError(f"--cell names whole cells, with their device: leave out {' and '.join(others)}")
    try:
        worlds = tuple(int(world) for world in matrix.listed(args.world))
    except ValueError:
        raise UsageError(f"--world takes numbers, not {args.world!r}") from None
    return Selection(
        failure=matrix.listed(args.failure),
        variant=matrix.listed(args.variant),
        strategy=matrix.listed(args.strategy),
        checkpointing=matrix.listed(args.checkpointing),
        precision=matrix.listed(args.precision),
        world_size=worlds,
        device=args.device or "cpu",
        cells=matrix.listed(args.cell),
    )


def wanted(args: argparse.Namespace) -> list[Cell]:
    """The cells that the options select; refuses what can't be run here."""
    if args.workers < 1:
        raise UsageError(f"--workers must be at least 1, not {args.workers}")
    cells = matrix.select(failures(), selection(args))
    devices = {cell.device for cell in cells}
    if len(devices) != 1:
        raise UsageError("give cells of one device at a time" if cells else "no cell is all of that")
    check_device(devices.pop())
    return cells


def finish(folder: RunFolder, found: Sequence[Result]) -> int:
    """Tables, junit.xml and page of a run; the exit code says whether all of it was expected."""
    junit.write(folder.path / "junit.xml", found)
    page.write(folder.path / "report.html", found, folder.facts())
    console = Console()
    terminal.tables(console, found)
    if len({result["failure"] for result in found}) > 1:
        listing.costs(console, ((result["failure"], result["seconds"]) for result in found))
    terminal.unexpected(console, found, folder.facts().get("asked", ""))
    print(f"results: {folder.shown}/cells.jsonl, junit.xml, report.html")
    return EXIT_AS_EXPECTED if all(map(reports.as_expected, found)) else EXIT_UNEXPECTED


def check_device(device: str, python: str = sys.executable) -> None:
    """Refuse CUDA where there is no GPU at all; a child looks, because this process never imports torch."""
    if device not in matrix.DEVICES:
        raise unknown("device", device, matrix.DEVICES)
    if device != "cuda":
        return
    look = [python, "-c", "import torch; raise SystemExit(0 if torch.cuda.is_available() else 3)"]
    if subprocess.run(look, capture_output=True, check=False).returncode:
        raise UsageError("DEVICE=cuda: torch sees no GPU here; leave DEVICE out to run on the CPU with gloo")


def list_cells(args: argparse.Namespace) -> int:
    """The cells of a selection: how many of each failure, and what the default matrix leaves out and why."""
    asked = selection(args)
    cells = matrix.select(failures(), asked)
    if args.ids:
        print(*(cell.id for cell in cells), sep="\n")
    elif args.left_out:
        for cell, rule in matrix.left_out(failures(), asked):
            print(f"{cell.id}  {rule}")
    else:
        counts = Counter(rule for _, rule in matrix.left_out(failures(), Selection(device=asked.device)))
        listing.overview(Console(), cells, {rule: counts[rule] for rule in matrix.RULES})
    return EXIT_AS_EXPECTED


def show(args: argparse.Namespace) -> int:
    """A failure's record, variants and claims, with verdicts from the newest run that has its cells."""
    if args.failure not in failures():
        raise unknown("failure", args.failure, list(failures()))
    failure = failures()[args.failure]
    cells = matrix.select(failures(), Selection(failure=(failure.name,)))
    folder, found = runs.newest_with(cells)
    told = {key: judged.verdict for key, judged in verdicts.in_run(failure, found).items()}
    if folder:
        own = sum(entry["failure"] == failure.name for entry in found)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.cells.stat().st_mtime))
        source = (
            f"Verdicts from {folder.shown} of {when}: {own} cells of this failure; the default matrix has {len(cells)}."
        )
    else:
        told = {}
        source = (
            f"No run here has cells of this failure: `make test-matrix FAILURE={failure.name}` measures them,"
            f" and repros/{failure.name}/README.md has verdicts that were measured before."
        )
    listing.failure(Console(), failure, told, source)
    return EXIT_AS_EXPECTED


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
        listing.environment(Console(), facts)
    return EXIT_AS_EXPECTED


def _gpus() -> list[str]:
    try:
        told = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return told.stdout.splitlines() if told.returncode == 0 else []


def bless(args: argparse.Namespace) -> int:
    """Rewrite expected.toml of the run's failures and show the difference."""
    folder = runs.undisturbed(args.run)
    if args.failure and args.failure not in failures():
        raise unknown("failure", args.failure, list(failures()))
    found = [entry for entry in runs.entries(folder) if args.failure in (entry["failure"], "", None)]
    blessing.refuse(found, bool(folder.facts().get("finished")))
    runs.same_stack(folder)
    changed = False
    for name in sorted({entry["failure"] for entry in found} & set(failures())):
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
    return EXIT_UNEXPECTED if changed and args.check else EXIT_AS_EXPECTED


def readme(args: argparse.Namespace) -> int:
    """Rewrite the measured part of each failure's README."""
    folder = runs.undisturbed(args.run)
    found = runs.entries(folder)
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
    print(overview.rewrite())
    return EXIT_AS_EXPECTED


def durations(args: argparse.Namespace) -> int:
    """Record how long cells took, so that shards of later runs are of equal length."""
    shards.record(runs.entries(runs.undisturbed(args.run)))
    return EXIT_AS_EXPECTED


def report(args: argparse.Namespace) -> int:
    """Show a run again."""
    folder = runs.chosen(args.run)
    return finish(folder, runs.entries(folder))


def merge(args: argparse.Namespace) -> int:
    """Put shards together in a new results folder and say what is missing."""
    folder, absent, missing = shards.merge([runs.undisturbed(name) for name in args.runs])
    code = finish(folder, folder.results())
    if absent:
        print(f"missing: every cell of {'shard' if len(absent) == 1 else 'shards'} {', '.join(absent)}")
    if missing:
        first = ", ".join(map(one_line, missing[:3]))
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        print(f"missing: {len(missing)} of the cells that the runs were asked for: {first}{more}")
    return EXIT_UNEXPECTED if absent or missing else code


def repeat(args: argparse.Namespace) -> int:
    """Run cells twice and compare every outcome."""
    return reliability.repeat(wanted(args), args.workers)


def chaos(args: argparse.Namespace) -> int:
    """Run random cells while ranks are killed."""
    if args.cells < 1 or not 0 <= args.rate <= 1:
        raise UsageError("--cells must be at least 1, and --rate a share between 0 and 1")
    return reliability.chaos(args.cells, args.rate, args.seed, args.workers)


def is_safe_change(args: argparse.Namespace) -> int:
    """Ask `is-safe` of what requirements.txt pins differently from an older one."""
    from faultline import cli  # which imports this module

    before, after = stacks.bump(Path(args.base_file), ROOT / "requirements.txt")
    if not after:
        print(UNCHANGED)
        # No run, which could go on, but what automation looks for: an earlier summary of this change is out of date.
        folder = results.RESULTS / time.strftime("is-safe-%Y-%m-%dT%H-%M-%S")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "summary.md").write_text(f"## {UNCHANGED}\n", encoding="utf-8")
        return EXIT_AS_EXPECTED
    print(f"{before} -> {after}", flush=True)
    return cli.main(["is-safe", after, "--base", before])


def clean_stacks(args: argparse.Namespace) -> int:
    """Remove the environments of all stacks, but for those in use."""
    removed, kept = environments.clean()
    told = f"{len(removed)} environment{'' if len(removed) == 1 else 's'} removed from {environments.cache()}"
    print(f"{told}; kept, as they are in use: {', '.join(folder.name for folder in kept)}" if kept else told)
    return EXIT_AS_EXPECTED


def bench(args: argparse.Namespace) -> int:
    """Measure what cells cost."""
    return benchmark.main()
