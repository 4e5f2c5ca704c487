"""`check`: somebody's own model under the strategies of the matrix, held against one process."""

import functools
import json
import sys
from dataclasses import dataclass

from rich.console import Console

from faultline.base.errors import (
    EXIT_AS_EXPECTED,
    EXIT_UNEXPECTED,
    EXIT_USAGE,
    TargetFailed,
    UsageError,
)
from faultline.base.packages import TODAY
from faultline.base.text import LONGEST, cut, plain
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, select
from faultline.check import cell as checked_cell
from faultline.check import findings, view
from faultline.check.target import parse
from faultline.runs import devices, folders, progress, storage
from faultline.runs.results import finite
from faultline.stacks import environments


@dataclass(frozen=True)
class Request:
    """A model to check (``train.py:build``, a config.json or a model's folder), in which cells and environment."""

    target: str
    selection: Selection
    lora: str = ""
    stack: str = TODAY
    python: str = ""
    workers: int = 1
    json: bool = False


def run(request: Request) -> int:
    """Check a model: exit code 0 if it trains alike everywhere, 1 if not."""
    target = parse(request.target, request.lora)
    findings.check_facts(failures().values())
    cells = select({checked_cell.NAME: checked_cell.CHECKED}, request.selection)
    if not cells:
        raise UsageError("no cell matches all of these options")
    python = environments.chosen(request.stack, request.python).python
    devices.check_device(cells[0].device, python)
    folder = storage.new_run(kind=checked_cell.NAME)
    asked = {"target": request.target, "lora": request.lora, "python": python}
    folder.describe(request=asked, cells=tuple(cell.id for cell in cells))
    try:
        run_cell = functools.partial(checked_cell.run, target)
        folders.measure(cells, request.workers, folder, python=python, run=run_cell, wrong=progress.UNLIKE_ALONE)
    except TargetFailed as failed:
        print(f"faultline: {cut(f'{request.target}: {failed}', LONGEST)}", file=sys.stderr)
        if failed.traceback:
            print(plain(failed.traceback), end="", file=sys.stderr)
        return EXIT_USAGE
    folder.describe(finished=True)
    by_id = {entry.cell.id: entry for entry in folder.results()}
    results = [by_id[cell.id] for cell in cells]
    if request.json:
        print(json.dumps(finite(view.as_json(results)), indent=2))
    else:
        view.show(Console(), request.target, options(request), results)
        print(f"results: {folder.shown}/cells.jsonl")
    if not findings.ran(results):
        return EXIT_USAGE
    return EXIT_AS_EXPECTED if findings.agrees(results) else EXIT_UNEXPECTED


def options(request: Request) -> list[str]:
    """The options that make a target what it is, beside the cells that are asked for."""
    stack = "" if request.stack == TODAY else request.stack
    given = {"--lora": request.lora, "--stack": stack, "--python": request.python}
    return [word for name, value in given.items() if value for word in (name, value)]
