"""What cells cost, as ratios measured side by side in one run; writes the table of bench/README.md."""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console

from faultline import strategies
from faultline.base import machine
from faultline.base.errors import EXIT_AS_EXPECTED
from faultline.base.interpreters import ask, command
from faultline.base.markdown import headed, put, row
from faultline.base.packages import versions
from faultline.base.paths import REPROS, ROOT
from faultline.catalogue.loading import failures, load_module
from faultline.cells import expected, selection
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.ranks.job import Job
from faultline.runs import estimates, measurement, nodes, runner
from faultline.runs.driver import Batch
from faultline.runs.results import Result
from faultline.runs.supervisor import RankServer

README = ROOT / "bench" / "README.md"
STRATEGIES = strategies.one_rank_names()
REPEATS = 20
MOST = {"zero3": 1.35}  # times the bare work; 1.7 for the others
CORES = machine.cores()

Row = tuple[str, str, str]
"""What is measured, its value, and the target."""

PROGRESS = Console(stderr=True)


def bench() -> int:
    """Measure everything and rewrite the table; most of the time is the matrix's."""
    rows: list[Row] = []
    cells = selection.select(failures(), Selection())
    both = estimates.wall_seconds(cells, CORES) + len(STRATEGIES) * REPEATS * estimates.START  # each under torchrun
    PROGRESS.print(f"{len(cells)} cells, {estimates.about(both)}", highlight=False)
    with RankServer(sys.executable) as ranks:
        references = runner.References(ranks.folder)
        rows += per_cell(ranks, references)
        rows.append(memory(ranks, references))
    rows += matrix(cells)
    cores = f"{CORES} cores, {psutil.virtual_memory().total >> 30} GB, Python {sys.version.split()[0]}"
    stack = ", ".join(f"{name} {version}" for name, version in versions().items())
    table = headed(("measured", "value", "target"), [row(*each) for each in rows])
    text = "\n".join([f"{cores}; {stack}.", "", *table])
    print(text)
    print(put(README, lambda: text))
    return EXIT_AS_EXPECTED


def healthy(strategy: str) -> list[Cell]:
    """REPEATS cells of a strategy that train: every variant that does and saves nothing, over and over."""
    cells = [
        cell
        for cell in selection.select(failures(), Selection(strategy=(strategy,), precision=("fp32",)))
        if cell.world_size == 2
        and not failures()[cell.failure].variant(cell.variant).trainer
        and not hasattr(load_module(REPROS / cell.failure), "save")
        and expected.first_rule(expected.rules(failures()[cell.failure]), cell, versions()) is None
    ]
    return [cells[i * len(cells) // REPEATS] for i in range(REPEATS)]


def per_cell(ranks: RankServer, references: runner.References) -> list[Row]:
    """Forked ranks against torchrun and against ranks that are already up, cell by cell in turn."""
    rows: list[Row] = []
    ranks.start()
    for strategy in STRATEGIES:
        forked, launched, bare = [], [], []
        for number, cell in enumerate(healthy(strategy)):
            reference = references.file(ranks, cell)
            if reference.problem:
                raise RuntimeError(f"{cell.id}: no reference: {reference.problem.traceback}")
            job = Job(cell, 2, reference=str(reference.file))
            forked.append(timed(partial(nodes.run, ranks, job)))
            again = nodes.run(ranks, replace(job, times=2))
            if wrong := [end.report.error for end in again.ranks if end.report and end.report.error]:
                raise RuntimeError(f"{cell.id}: {wrong[0].message}")
            bare.append(max(end.report.seconds for end in again.ranks if end.report))
            launched.append(timed(partial(torchrun, job)))
            PROGRESS.print(f"{strategy} {number + 1}/{REPEATS}: {forked[-1]:.2f} s, torchrun {launched[-1]:.1f} s")
        cost, slow, least = map(statistics.median, (forked, launched, bare))
        per_pair = statistics.median(b / a for a, b in zip(forked, launched, strict=True))
        over = statistics.median(a / b for a, b in zip(forked, bare, strict=True))
        rows += [
            (f"{strategy}: torchrun / cell", f"{per_pair:.0f} ({slow:.1f} s / {cost:.2f} s)", "at least 25"),
            (
                f"{strategy}: cell / bare work",
                f"{over:.2f} ({cost:.2f} s / {least:.2f} s)",
                f"at most {MOST.get(strategy, 1.7)}",
            ),
        ]
    return rows


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def torchrun(job: Job) -> None:
    """The same job, started the usual way; its own reports prove that it ran."""
    with tempfile.TemporaryDirectory(prefix="faultline-torchrun-") as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(asdict(replace(job, folder=folder))))
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        words += ["-m", "faultline.ranks.launched", str(file)]
        done = ask(command(sys.executable, *words))
        reports = [Path(folder) / f"report{rank}.json" for rank in range(2)]
        if done.returncode or any(json.loads(report.read_text())["error"] for report in reports):
            raise RuntimeError(f"{job.cell.id}: a rank that torchrun started failed:\n{done.stderr[-4000:]}")


def memory(ranks: RankServer, references: runner.References) -> Row:
    """The most that server and ranks hold together, shared pages counted once (PSS), in a cell of each strategy.

    They are all that runs below this process: a second server would share the libraries' pages, and halve them.
    """
    cells = [healthy(strategy)[0] for strategy in STRATEGIES]
    jobs = [Job(cell, 2, reference=str(references.file(ranks, cell).file), times=3) for cell in cells]
    most = 0
    with ThreadPoolExecutor(1) as beside:
        running = beside.submit(lambda: [nodes.run(ranks, job) for job in jobs for _ in range(5)])
        while not running.done():
            try:
                everyone = psutil.Process().children(recursive=True)
                most = max(most, sum(child.memory_full_info().pss for child in everyone))
            except psutil.NoSuchProcess:
                pass
            time.sleep(0.01)
        running.result()
    return ("server and two ranks (PSS)", f"{most / 2**30:.2f} GB", "under 3 GB")


def matrix(cells: Sequence[Cell]) -> list[Row]:
    """The default matrix."""
    entries: list[Result] = []

    def note(_: Batch, entry: Result) -> None:
        entries.append(entry)

    seconds = timed(partial(measurement.run_batches, [Batch(cells)], CORES, on_result=note))
    wrong = [entry.cell.id for entry in entries if entry.verdict != "expected"]
    PROGRESS.print(f"{len(cells)} cells in {seconds / 60:.1f} min; not as expected: {', '.join(wrong) or 'none'}")
    return [
        (f"default matrix ({len(cells)} cells)", f"{seconds / 60:.1f} min", "at most 18 min for 5,033 cells"),
        ("cells that did not do what is expected of them", f"{len(wrong)}", "0"),
    ]
