"""The verbs of the matrix: run its cells, list them, show a failure, show a run again."""

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from faultline.base.console import write_line
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.base.packages import TODAY, stack_name
from faultline.base.text import one_line
from faultline.catalogue import stories
from faultline.catalogue.loading import failure_named, failures
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, left_out, select
from faultline.cells.words import group_strategies
from faultline.observations import measured, symptoms
from faultline.report import failure as report_failure
from faultline.report import junit, on_gpus, page, terminal
from faultline.runs import estimates, gpus, measurement, results, sendable, storage
from faultline.runs.driver import Batch
from faultline.runs.engines import LOCAL, Engine, check_cells
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments


@dataclass(frozen=True)
class RunRequest:
    """Cells to run: which, on which stack, which shard (``1/4``) of them; `resume` goes on with the newest run.

    It is in a folder of its own where `results` names one; then the run may also begin there.
    `python` is the interpreter of an environment that takes the place of the stack. `fresh` takes no cached results;
    otherwise those are taken that are as expected: what isn't runs again, for somebody may want to see if it repeats.
    """

    selection: Selection
    stack: str = TODAY
    python: str = ""
    workers: int = 1
    resume: bool = False
    shard: str = ""
    quick: bool = False
    fresh: bool = False
    engine: Engine = LOCAL
    results: str = ""


def run(request: RunRequest) -> int:
    """Run cells into a results folder; the exit code says whether all of them did what is expected."""
    whole = chosen(request)
    cells = shard(whole, request.shard) if request.shard else whole
    stack = environments.chosen(request.stack, request.python)
    about: dict[str, object] = {"whole": tuple(cell.id for cell in whole)} if request.shard else {}
    if whole[0].device == "cuda" and request.engine.here:
        about["machine"] = gpus.machine()
    kind = "run" if request.stack == TODAY and not request.python else "stack"
    asked = "" if request.stack == TODAY else request.stack
    selection = vars(request.selection)
    named = Path(request.results).absolute() if request.results else None  # made last, so that no mistake leaves it
    with storage.alone(named) if named else nullcontext():
        folder, known = storage.begun(kind, cells, stack.versions, selection, asked, request.resume, named, **about)
        batch = measurement.prepare(Batch(cells, stack, folder, known), request.engine, request.fresh, expected=True)
        measurement.measure([batch], request.workers, request.engine)
        folder.describe(finished=True)
        return finish(folder, folder.results(), ran_here=True)


def chosen(request: RunRequest) -> list[Cell]:
    """The cells of a request before they are split; a mistake in it, or in a failure's rules, is reported first."""
    cells = select(failures(), request.selection)
    check_cells(cells, request.engine)
    for failure in failures().values():
        expected.rules(failure)
    return measured.quick(cells) if request.quick else cells


def finish(folder: RunFolder, judged: Sequence[Result], ran_here: bool = False) -> int:
    """Print the tables of a run, write its junit.xml and page; exit code 1 if a cell did not run, or not do what is
    expected.

    Where a run on GPUs `ran_here` on a stack of stacks/, it also leaves a file that can be sent: another machine
    doesn't know which names to leave out of it.
    """
    if on_gpu := any(result.cell.device == "cuda" for result in judged):
        folder.describe(machine=sendable.machine(folder.info().machine, judged))
    info = folder.info()
    junit.write(folder.path / "junit.xml", judged)
    page.write(folder.path / "report.html", judged, info)
    console = Console()
    terminal.tables(console, judged)
    missing = {*info.cells} - {result.cell.id for result in judged}
    if on_gpu:
        on_gpus.show(console, on_gpus.compared(judged), info, missing)
        terminal.ended(console, judged, len(missing))
    else:
        terminal.unexpected(console, judged, info.asked, len(missing))
    print(f"results: {folder.shown}/cells.jsonl, junit.xml, report.html")
    if on_gpu and ran_here and all(measured.named_as(result.stack) for result in judged):
        file = sendable.write(folder, judged).name
        print(f"to send, with no name of this machine or its user: {folder.shown}/{file} (docs/ci.md says where)")
    return EXIT_UNEXPECTED if missing or not all(map(results.as_expected, judged)) else EXIT_AS_EXPECTED


def shard(cells: Sequence[Cell], text: str) -> list[Cell]:
    """One shard of the cells, from ``i/n``: every machine computes the same split from the same cells."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    number, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= number <= count:
        raise UsageError(f"--shard takes I/N with 1 <= I <= N, for instance 1/4, not {text!r}")
    return split(cells, count, estimates.recorded())[number - 1]


def split(cells: Sequence[Cell], count: int, seconds: Mapping[str, float]) -> list[list[Cell]]:
    """Longest first, each to the shard with the least work so far; every shard keeps the cells' order."""
    loads = [0.0] * count
    shards: list[set[Cell]] = [set() for _ in range(count)]
    lasts = {cell: seconds.get(estimates.kind(cell), estimates.UNKNOWN) for cell in cells}
    for cell in sorted(cells, key=lambda cell: (-lasts[cell], cell.id)):
        lightest = loads.index(min(loads))
        loads[lightest] += lasts[cell]
        shards[lightest].add(cell)
    return [[cell for cell in cells if cell in part] for part in shards]


def merge(runs: Sequence[str], into: Path | None = None) -> int:
    """Put shards together in a results folder, a new one or `into`, and print what is missing."""
    folder, missing = _merged([storage.undisturbed(name) for name in runs], into)
    code = finish(folder, folder.results())
    if missing:
        first = ", ".join(map(one_line, missing[:3]))
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        print(f"missing: {len(missing)} of the cells that the runs were asked for: {first}{more}")
    return EXIT_UNEXPECTED if missing else code


def _merged(folders: Sequence[RunFolder], into: Path | None = None) -> tuple[RunFolder, list[str]]:
    """A new results folder with every shard's cells, and the cells that none of the shards given has.

    `into` names another folder, whose earlier merge is replaced. Refuses shards of different stacks or of different
    cells.
    """
    infos = [folder.info() for folder in folders]
    stacks = sorted({info.stack for info in infos if info.stack})
    if len(stacks) > 1:
        raise UsageError(f"the runs are of different stacks: {' / '.join(stacks)}")
    asked = {info.whole or info.cells for info in infos}
    if len(asked) > 1:
        raise UsageError("the runs were asked for different cells; only shards of the same cells can be merged")
    [whole] = asked
    results = {entry.cell.id: entry for folder in folders for entry in storage.entries(folder)}
    missing = [cell for cell in whole if cell not in results]
    if into:
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
    merged = RunFolder(into) if into else storage.new_run()
    machines = {info.machine for info in infos}
    machine = machines.pop() if len(machines) == 1 else storage.Machine()
    merged.describe(request=infos[0].request, cells=whole, stack="".join(stacks), machine=machine, finished=not missing)
    with closing(storage.Writer(merged)) as writer:
        writer.add(*results.values())
    return merged, missing


def list_cells(selection: Selection, only_ids: bool = False, only_left_out: bool = False) -> int:
    """Print the failures of a selection with their cells' number, or which cells; or what is left out and why."""
    cells = select(failures(), selection)
    if only_ids:
        print(*(cell.id for cell in cells), sep="\n")
    elif only_left_out:
        for cell, rule in left_out(failures(), selection):
            print(f"{cell.id}  {rule}")
    else:
        chosen = {*cells}
        others = sum(cell not in chosen for cell, _ in left_out(failures(), selection))
        console = Console()
        terminal.overview(console, cells, others)
        if known := on_gpus.count_measured(cells, measured.pinned()):
            write_line(console, known, "dim")
    return EXIT_AS_EXPECTED


def list_symptoms(selection: Selection) -> int:
    """Print what one sees where nothing raises, and which failures of a selection are behind it."""
    wanted = {cell.failure for cell in select(failures(), selection)}
    console = Console()
    for words, by_failure in symptoms.by_symptom().items():
        shown = {name: where for name, where in by_failure.items() if name in wanted}
        if shown:
            write_line(console, words, "bold")
        for name, where in shown.items():
            write_line(console, f"  {name}  {failures()[name].title}; under {group_strategies(where, ())}")
    return EXIT_AS_EXPECTED


def show(name: str, signatures: bool = False) -> int:
    """Print a failure: its cause, what one sees, what helps and what doesn't, its records."""
    wanted = failure_named(name)
    newest = next(storage.runs(), None)
    results = [each for each in newest.results(name) if each.cell.failure == name] if newest else []
    fates = report_failure.fates(wanted, results)
    source = f"with {stack_name(measured.pinned())}"
    if newest and results:
        source += f"; your newest run is {newest.shown}"
    there = on_gpus.summary(wanted, select({wanted.name: wanted}, Selection(device="cuda")), measured.pinned())
    report_failure.show(Console(), wanted, stories.sections(wanted), fates, source, signatures, there)
    return EXIT_AS_EXPECTED


def report(run: str) -> int:
    """Show a run again: a results folder, or the newest, on whichever stack."""
    folder = storage.chosen(run) if run else storage.newest()
    return finish(folder, storage.entries(folder))
