"""`check`: somebody's own model under the strategies of the matrix, held against one process."""

from __future__ import annotations

import functools
import json
import sys
from dataclasses import dataclass

from rich.console import Console

from faultline.base.errors import (
    EXIT_AS_EXPECTED,
    EXIT_INTERRUPTED,
    EXIT_UNEXPECTED,
    EXIT_USAGE,
    TargetFailed,
    UsageError,
)
from faultline.base.packages import TODAY
from faultline.base.text import LONGEST, cut, plain
from faultline.cells.selection import Selection, select
from faultline.check import cell as checked_cell
from faultline.check import findings, view
from faultline.check.target import parse
from faultline.runs import devices, folders, progress, results, storage
from faultline.stacks import environments, requests


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
    cells = select({checked_cell.NAME: checked_cell.CHECKED}, request.selection)
    if not cells:
        raise UsageError("no cell is all of that")
    environment = (
        environments.existing(request.python) if request.python else environments.ready(requests.parse(request.stack))
    )
    python = environment.python
    devices.check_device(cells[0].device, python)
    folder = storage.new_run(kind=checked_cell.NAME)
    folder.describe(target=request.target, lora=request.lora, python=python, cells=[cell.id for cell in cells])
    try:
        run_cell = functools.partial(checked_cell.run, target)
        folders.measure(cells, request.workers, folder, python=python, run=run_cell, wrong=progress.UNLIKE_ALONE)
    except TargetFailed as failed:
        print(f"faultline: {cut(f'{request.target}: {failed}', LONGEST)}", file=sys.stderr)
        if failed.traceback:
            print(plain(failed.traceback), end="", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        had = f"{len(folder.results())} of {len(cells)} cells, which are in {folder.shown}/cells.jsonl"
        print(f"faultline: interrupted after {had}", file=sys.stderr)
        return EXIT_INTERRUPTED
    folder.describe(finished=True)
    by_id = {entry.cell.id: entry for entry in folder.results()}
    found = [by_id[cell.id] for cell in cells]
    if request.json:
        print(json.dumps(results.finite(view.as_json(found)), indent=2))
    else:
        view.show(Console(), request.target, options(request), found)
        print(f"results: {folder.shown}/cells.jsonl")
    if not findings.ran(found):
        return EXIT_USAGE
    return EXIT_AS_EXPECTED if findings.agrees(found) else EXIT_UNEXPECTED


def options(request: Request) -> list[str]:
    """The options that make a target what it is, beside the cells that are asked for."""
    given = {
        "--lora": request.lora,
        "--stack": "" if request.stack == TODAY else request.stack,
        "--python": request.python,
    }
    return [word for name, value in given.items() if value for word in (name, value)]
