"""`check`: somebody's own model under the strategies of the matrix, held against one process."""

import functools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from faultline.base.errors import (
    EXIT_AS_EXPECTED,
    EXIT_UNDECIDED,
    EXIT_UNEXPECTED,
    EXIT_USAGE,
    TargetFailed,
    UsageError,
)
from faultline.base.packages import TODAY, stack_name
from faultline.base.text import LONGEST, count, cut, plain
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.check import beside, tried
from faultline.check import cell as checked_cell
from faultline.check.known import check_facts
from faultline.check.result import CheckResult
from faultline.check.target import parse
from faultline.runs import engines, measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments


@dataclass(frozen=True)
class CheckRequest:
    """A model to check (``train.py:build``, a config.json or a model's folder), in which cells and environment.

    `path` has folders in which its file looks for modules, beside its own. `resume` goes on with the newest check.
    `export` names a file that is not there yet, for a script that shows a difference. `units` are the classes of FSDP's
    units.
    """

    target: str
    selection: Selection
    lora: str = ""
    stack: str = TODAY
    python: str = ""
    workers: int = 1
    json: bool = False
    path: tuple[str, ...] = ()
    resume: bool = False
    export: str = ""
    units: str = ""


def run(request: CheckRequest) -> int:
    """Check a model and print the answer: exit code 0 if it trains alike everywhere, 1 if not, 3 if nobody can tell."""
    if request.export and Path(request.export).exists():
        raise UsageError(f"{plain(request.export)} exists: name a file that doesn't")
    try:
        result = answer(request)
    except TargetFailed as failed:
        print(f"faultline: {cut(f'{request.target}: {failed}', LONGEST)}", file=sys.stderr)
        if failed.traceback:
            print(plain(failed.traceback), end="", file=sys.stderr)
        return EXIT_USAGE
    if request.json:
        print(json.dumps(result.as_json(), indent=2))
    else:
        result.show(Console())
    if request.export and result.decided and not result.agrees:
        print(export(request, result), file=sys.stderr)
    if not result.decided:
        return EXIT_UNDECIDED
    return EXIT_AS_EXPECTED if result.agrees else EXIT_UNEXPECTED


def export(request: CheckRequest, result: CheckResult) -> str:
    """Write the script of the first difference, and give the line that says so; raises NotExportable."""
    from faultline.check import script  # here, as no other check needs its templates

    cell, file = script.chosen(result.cells), Path(request.export)
    target = parse(request.target, request.lora, request.path, request.units)
    text = script.write(target, cell, file, environments.chosen(request.stack, request.python).python)
    file.write_text(text, encoding="utf-8")
    return f"{plain(file)}: {cell.cell.id.removeprefix('check/model/')}, {count(len(text.splitlines()), 'line')}"


def answer(request: CheckRequest) -> CheckResult:
    """Train a model in its cells, behind a progress bar on stderr; every cell is on disk at once.

    Raises UsageError for what can't be checked, TargetFailed where one process can't train the model, and Unavailable
    where there is no environment for it.
    """
    target = parse(request.target, request.lora, request.path, request.units)
    check_facts(failures().values())
    cells = selected(request.selection)
    environment = environments.chosen(request.stack, request.python)
    engines.check_device(cells[0].device, environment.python)
    asked = {
        "target": request.target,
        "lora": request.lora,
        "units": request.units,
        "python": environment.python,
        "digest": target.digest,
    }
    folder, known = begun(request, asked, cells, environment.versions)

    def measure(wanted: Sequence[Cell], known: Sequence[Result]) -> dict[Cell, Result]:
        missing = measurement.without(wanted, known)
        batch = Batch(missing, environment, folder, known, run=functools.partial(beside.run, target))
        measurement.measure([batch], request.workers, wrong=measurement.UNLIKE_ALONE)
        return {entry.cell: entry for entry in folder.results()}

    by_cell = measure(cells, known)
    more = tried.untried([by_cell[cell] for cell in cells])
    if more:
        print(f"{count(len(more), 'cell')} more, to try remedies on this model", file=sys.stderr)
        by_cell = measure(more, [by_cell[cell] for cell in more if cell in by_cell])
    folder.describe(finished=True)
    answers, remedies = ([by_cell[cell] for cell in each] for each in (cells, more))
    return CheckResult(request.target, options(request), tuple(answers), folder, tuple(remedies))


def begun(
    request: CheckRequest, asked: Mapping[str, object], cells: Sequence[Cell], versions: Mapping[str, str]
) -> tuple[RunFolder, list[Result]]:
    """The folder of a check and the results that it already has: a new folder, or the newest one of the same.

    Raises UsageError where the newest check was of another model, environment, selection or stack, or its file changed
    since.
    """
    ids = tuple(cell.id for cell in cells)
    if not request.resume:
        folder = storage.new_run(kind=checked_cell.NAME)
        folder.describe(request=asked, cells=ids, stack=stack_name(versions))
        return folder, []
    folder = storage.latest_run(kind=checked_cell.NAME)
    info = folder.info()
    if {**info.request, "digest": ""} != {**asked, "digest": ""} or info.cells != ids:
        raise UsageError(
            f"{folder.shown} is a check of something else: give the same target and options, or start anew"
        )
    if info.request["digest"] != asked["digest"]:
        raise UsageError(f"{request.target} changed since {folder.shown}: start anew, without --resume")
    storage.same_stack(folder, versions)
    return folder, storage.entries(folder)


def selected(selection: Selection) -> list[Cell]:
    """The cells of any model that are asked for; raises UsageError for unknown names, and where there is none."""
    cells = select({checked_cell.NAME: checked_cell.CHECKED}, selection)
    if not cells:
        raise UsageError("no cell matches all of these options")
    return cells


def options(request: CheckRequest) -> tuple[str, ...]:
    """The options that make a target what it is, beside the cells that are asked for."""
    stack = "" if request.stack == TODAY else request.stack
    given = {"--lora": request.lora, "--units": request.units, "--stack": stack, "--python": request.python}
    return tuple(word for name, value in given.items() if value for word in (name, value))
