"""What a rank is given to do, and the places where a test may reach into it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.catalogue import Variant
from faultline.cells.cell import Cell
from faultline.ranks.report import Report
from faultline.strategies import Setup


@dataclass(frozen=True)
class Run:
    """A failure's module, or what stands for it, and the variant of it that this rank runs; the folder of its
    checkpoint, where it saves one."""

    module: Any  # has `scenario` or `trainer`, as a failure's file
    variant: Variant
    cell: Cell
    setup: Setup
    checkpoint: str = ""


def _same(thing: Any, setup: Setup) -> Any:
    return thing


@dataclass(frozen=True)
class Injection:
    """Changes what is run, to seed a fault or to measure noise; the default changes nothing.

    `model` alters a bare model in place; `scenario` and `wrapped` give back what
    to use instead of the Scenario and the Wrapped that they are handed. `save` is
    given what writes a rank's part of a checkpoint, and the folder that it writes to.
    """

    model: Callable[[Any], None] = lambda model: None
    scenario: Callable[[Any, Setup], Any] = _same
    wrapped: Callable[[Any, Setup], Any] = _same
    save: Callable[[Callable[[], None], Path, Setup], None] = lambda write, folder, setup: write()


def show(report: Report, folder: str) -> None:
    """Leave a rank's evidence where the supervisor finds it, should the rank not live to report."""
    file = Path(folder) / f"rank{report.rank}.evidence"
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(report.evidence))
    partial.replace(file)


def injection(target: str | None) -> Injection:
    """The Injection that ``path/to/file.py:NAME`` names."""
    if not target:
        return Injection()
    file, name = target.rsplit(":", 1)
    spec = importlib.util.spec_from_file_location("injected", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)
