"""The verb: somebody's own model under the strategies of the matrix, held against one process."""

import functools
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from faultline.base.axes import COMPILE
from faultline.base.console import printed, write_line
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
from faultline.check import cell as checked_cell
from faultline.check import findings, target, variations, view
from faultline.check.findings import Group
from faultline.check.known import check_facts
from faultline.check.remedies import untried
from faultline.check.target import parse
from faultline.runs import engines, measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.progress import UNLIKE_ALONE
from faultline.runs.results import Result, finite
from faultline.runs.runner import References
from faultline.runs.storage import RunFolder
from faultline.runs.supervisor import RankServer
from faultline.stacks import environments


@dataclass(frozen=True, repr=False)
class CheckResult:
    """The results of a model's cells, and the problems of those that differ from a single process.

    `str` is the answer of `faultline check`, as it is written to a file.

    - `target`: what was checked, as the command line names it; `options`: those that it was given with
    - `cells`: a `Result` for each cell, in the order of the matrix: its `cell`, `outcome`, `signature`, `detail`, ...
    - `folder`: where the cells were written, if they were
    - `remedies`: results of other cells, in which remedies were tried; they don't count for the answer
    """

    target: str
    options: tuple[str, ...]
    cells: tuple[Result, ...]
    folder: RunFolder | None = None
    remedies: tuple[Result, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether any cell could be run."""
        return findings.ran(self.cells)

    @property
    def decided(self) -> bool:
        """Whether anything is known of the strategies: nothing is where only a single process could be run."""
        return findings.decided(self.cells)

    @property
    def agrees(self) -> bool:
        """Whether every cell that could be run does what one process does, and one of several ranks is among them."""
        return findings.agrees(self.cells)

    @property
    def verdict(self) -> str:
        """The answer in a line."""
        return view.verdict(self.cells)

    @property
    def problems(self) -> list[Group]:
        """The causes, each with its `forms`, and the known failure that it is (`match`), if it is one."""
        return findings.groups(self.cells)

    def as_json(self) -> dict[str, object]:
        """The answer of ``--json``; docs/check.md has the keys."""
        values: dict[str, object] = finite(view.as_json(self.cells, self.remedies))
        return values

    def show(self, console: Console) -> None:
        view.show(console, self.target, self.options, self.cells, self.remedies)
        if self.folder:
            write_line(console, f"results: {self.folder.shown}/cells.jsonl")

    def __str__(self) -> str:
        return printed(self.show)

    def __repr__(self) -> str:
        return f"CheckResult({self.target!r}, agrees={self.agrees}, cells={len(self.cells)})"


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

    cell, file = script.pick_result(result.cells), Path(request.export)
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
        batch = Batch(missing, environment, folder, known, run=functools.partial(variations.run, target))
        measurement.measure([batch], request.workers, wrong=UNLIKE_ALONE)
        return {entry.cell: entry for entry in folder.results()}

    by_cell = measure(cells, known)
    more = untried([by_cell[cell] for cell in cells])
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
    if any(cell.compile != COMPILE.default for cell in cells):
        raise UsageError("a check watches each module, which a compiled model doesn't allow: leave out --compile")
    return cells


def options(request: CheckRequest) -> tuple[str, ...]:
    """The options that make a target what it is, beside the cells that are asked for."""
    stack = "" if request.stack == TODAY else request.stack
    given = {"--lora": request.lora, "--units": request.units, "--stack": stack, "--python": request.python}
    return tuple(word for name, value in given.items() if value for word in (name, value))


class CheckSession:
    """A rank server of this process's stack, and the reference of each model, which is made once; `close` it."""

    def __init__(self) -> None:
        """Raises UsageError where a library under test is not installed."""
        self._server = RankServer(environments.chosen(TODAY, "").python)
        self._references: dict[str, References] = {}

    def check(self, written: str, cell: Cell) -> CheckResult:
        """Check a function, as `target_name` names it, in one cell; raises TargetFailed and NeverReady."""
        model = target.parse(written, "", target.search_path())
        if written not in self._references:
            # In the server's folder: if this process is killed, the server removes it.
            folder = tempfile.mkdtemp(dir=self._server.folder, prefix="references-")
            self._references[written] = References(Path(folder))
        entry = variations.run(model, self._server, self._references[written], cell)
        return CheckResult(written, (), (entry,))

    def close(self) -> None:
        self._server.close()
