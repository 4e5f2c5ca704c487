"""The functions that a program calls; each gives the result that the command of its name prints."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from faultline.base import machine
from faultline.base.errors import NotInstalled, Refused, UsageError
from faultline.ranks import start

if TYPE_CHECKING:
    from faultline.audit.result import AuditResult
    from faultline.cells.selection import Selection
    from faultline.check.result import CheckResult
    from faultline.diagnose.result import DiagnoseResult

Names = str | int | Sequence[str | int]
"""Values of an axis: ``"ddp,zero*"``, ``["ddp", "zero*"]``, or ``2``."""


def check(
    build: Callable[[], object] | str | os.PathLike[str],
    strategies: Names = "",
    checkpointing: Names = "",
    *,
    precision: Names = "",
    world: Names = "",
    device: str = "",
    lora: str = "",
    units: str = "",
    stack: str | None = None,
    python: str | None = None,
    workers: int | None = None,
) -> CheckResult:
    """Train a model for three steps under strategies, and compare each with a single process.

    `build` is a function at the top level of a file, which takes nothing and returns a model, or (model, loss, batch):
    a `torch.nn.Module`, a function `loss(model, batch)` that gives one number, and tensors of 4 rows, or a function
    `batch(step, rank, world_size)`. It may also be a text as the command takes it, ``"train.py:build"``, or the path of
    a config.json or of a model's folder. It is called in the ranks only: this process imports neither it nor torch.

    Axes take names or patterns: `strategies` (``"zero*,fsdp2"``), `checkpointing` (``off``, ``reentrant``,
    ``non-reentrant``), `precision` (``fp32``, ``bf16``), and `world`, the number of ranks (1, 2 or 4). An axis that is
    left out takes what `faultline check` takes. `lora` adds an adapter (``"r=8,target=all-linear"``), `units` are the
    classes of FSDP's units (``"Block"``), or ``"root"``. `stack` or
    `python` names another environment, `workers` how many cells run at a time: as many as there are cores, if it is
    left out.

    Progress goes to stderr, and the cells to a folder in `results/` (in a package, `.faultline/results/`).

    Raises UsageError for what can't be asked, TargetFailed (with the `traceback` of your code) where one process can't
    train the model, and Unavailable where there is no environment for it.
    """
    if start.IN_RANKS in os.environ:  # a script that checks its own function would start checks without end
        raise Refused('the file calls faultline.check while it is loaded: call it under `if __name__ == "__main__":`')
    from faultline.base.packages import TODAY
    from faultline.check import command, target

    if not (callable(build) or isinstance(build, str | os.PathLike)):
        raise UsageError(f"build is a function, a text or a path, not a {type(build).__name__}: give one of these")
    if stack and python:
        raise UsageError("stack and python exclude each other: give one of them")
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, not {workers}")
    cells = selection(strategies, checkpointing, precision, world, device)
    named = target.written(build) if callable(build) else os.fspath(build)
    folders = target.search_path()
    cores = workers or machine.cores()
    try:
        return command.answer(
            command.CheckRequest(named, cells, lora, stack or TODAY, python or "", cores, path=folders, units=units)
        )
    except NotInstalled as error:
        raise NotInstalled(error.lacking, "name another environment with python=", "let stack= make one") from None


def diagnose(
    log: str | os.PathLike[str],
    *more: str | os.PathLike[str],
    strategy: str = "",
    checkpointing: str = "",
    stack: str = "",
) -> DiagnoseResult:
    """Name the failure that a log shows, and what was measured to help.

    `log` is a file, or a text: one of several lines, or one line with an error in it that is no file's name. `more` are
    the files of other ranks. `strategy`, `checkpointing` and `stack` say what the log doesn't show, as the command's
    options do.

    Raises UsageError for a file that can't be read, for an empty log, and for unknown names.
    """
    from faultline.diagnose import command

    for each in (log, *more):
        if not isinstance(each, str | os.PathLike):
            raise UsageError(
                f"a log is a file or a text, not a {type(each).__name__}: give several one after the other"
            )
        if not os.fspath(each):
            raise UsageError("the log is empty: give a file or a text")
    text = ""
    if isinstance(log, str) and not more:
        text = log if "\n" in log else command.pasted([log])
    logs = tuple(os.fspath(each) for each in (log, *more))
    return command.answer(command.DiagnoseRequest(logs, strategy, checkpointing, stack, text=text))


def audit(
    *paths: str | os.PathLike[str], environment: bool = False, python: str = "", everything: bool = False
) -> AuditResult:
    """List the failures whose recorded conditions hold in a training project; nothing of it is run.

    `paths` are requirements, lock files, configs, scripts, code, or folders; without any, the current folder.
    `environment` reads the packages of the active environment; `python` is the interpreter of another. `everything`
    also prints what only could apply.

    Raises UsageError where there is nothing to read, or a file isn't recognised.
    """
    from faultline.audit import command

    for each in paths:
        if not isinstance(each, str | os.PathLike):
            raise UsageError(
                f"a path is a text or a path, not a {type(each).__name__}: give several one after the other"
            )
    return command.answer(
        command.AuditRequest(tuple(os.fspath(path) for path in paths), environment, python, everything)
    )


def selection(
    strategies: Names = "", checkpointing: Names = "", precision: Names = "", world: Names = "", device: str = ""
) -> Selection:
    """The places that are asked for, of models that are checked; raises UsageError for a world that is no number."""
    from faultline.cells.selection import Selection

    axes = {"strategy": strategies, "checkpointing": checkpointing, "precision": precision, "world": world}
    return Selection.parse(**{axis: _listed(names) for axis, names in axes.items()}, device=device)


def _listed(names: Names) -> str:
    return str(names) if isinstance(names, str | int) else ",".join(map(str, names))
