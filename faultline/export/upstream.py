"""What an issue has for its project beside the file: the line at fault, the device, and the project's own report."""

import functools
import os
import re
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.base.interpreters import ask
from faultline.base.packages import REPOSITORIES, untagged, versions
from faultline.base.text import one_line, plain
from faultline.base.traces import shorten_paths
from faultline.catalogue.outcomes import outcome_text
from faultline.cells import expected
from faultline.export.cell import ExportedCell, recorded
from faultline.observations import measured, store

FRAME = re.compile(r'File "site-packages/((\w+)/[\w./+-]+)", line (\d+),? in (\S+)')
CALLS = ("torch/nn/modules/module.py", "torch/utils/_contextlib.py")  # which only call what is at fault
# What the forms of these projects ask for, and what it was called before.
REPORTS = {
    "huggingface/trl": (("trl", "env"),),
    "huggingface/transformers": (("transformers", "env"), ("transformers-cli", "env")),
    "huggingface/accelerate": (("accelerate", "env"),),
    "deepspeedai/DeepSpeed": (("ds_report",),),
    "pytorch/pytorch": (("python", "-m", "torch.utils.collect_env"),),
}
PATIENCE = 120  # seconds that a report may take
LINES, WIDTH = 200, 160  # that are shown of it, and of why there is none
ASKED = re.compile(r"^Copy-and-paste .*|^Copy-paste .*", re.MULTILINE)  # of whoever runs it
LOGGED = re.compile(r"^\[[\d-]+ [\d:,]+\] .*\n", re.MULTILINE)  # lines of a logger, which are in front of it


def environment(where: ExportedCell) -> tuple[str, str]:
    """The command of the project's own report, and what it prints on the cell's stack; both empty if it asks for none.

    A report that fails, or that would be of other versions, is a note why.
    """
    known = REPORTS.get(where.failure.upstream, ())
    folder = Path(sys.executable).parent
    command = next((each for each in known if (folder / each[0]).exists()), known[0] if known else ())
    shown = " ".join(command)
    here = installed()
    if command and not here:
        return shown, f"`{shown}` was not run: not all libraries under test are installed here"
    if command and here != where.stack:
        return shown, f"`{shown}` was not run: other versions are installed here than those of the file"
    text = printed(folder, command) if command else ""
    parallel = f"yes, {where.cell.strategy}, {where.cell.world_size} processes"
    return shown, text.replace("<fill in>", "no" if where.cell.strategy == "single" else parallel)


def installed() -> dict[str, str]:
    """The versions of the packages under test beside this process; none if one of them isn't there."""
    try:
        return untagged(versions())
    except PackageNotFoundError:
        return {}


@functools.cache
def printed(folder: Path, command: tuple[str, ...]) -> str:
    """What a report of an environment prints, or a note why it prints nothing."""
    shown = " ".join(command)
    try:
        # These start further interpreters, which only the variable reaches.
        done = ask(
            [str(folder / command[0]), *command[1:]],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "PYTHONSAFEPATH": "1"},
            patience=PATIENCE,
        )
    except UsageError as error:
        return f"no report: {str(error).replace(str(folder / command[0]), shown)}"
    if done.returncode:
        last = one_line((done.stderr.strip().splitlines() or [""])[-1])[:WIDTH]
        return f"`{shown}` ended with exit code {done.returncode}: {last}"
    text = ASKED.sub("", LOGGED.sub("", shorten_paths(plain(done.stdout))))
    return "\n".join(line.rstrip() for line in text.strip().splitlines()[:LINES])


def line_at_fault(where: ExportedCell) -> tuple[str, str]:
    """The innermost line of the project that an issue is for, or of any library: its place, and its address.

    Without an error it is the line that history.toml names; both are empty if there is none.
    """
    for error in recorded(where) if where.kind in ("raises", "hangs") else ():
        frames = [each for each in FRAME.findall(error.traceback) if each[1] in REPOSITORIES and each[0] not in CALLS]
        frames = frames if where.kind == "hangs" else frames[::-1]  # faulthandler has the innermost first
        of_project = [each for each in frames if REPOSITORIES[each[1]].name == where.failure.upstream]
        for file, package, number, name in of_project or frames:
            if package in where.pins:
                url = REPOSITORIES[package].line(where.pins[package], file, int(number))
                return f"`{file}`, line {number}, in `{name}`", url
    if not (fault := where.failure.history.fault) or where.kind in ("raises", "hangs"):
        return "", ""
    url = REPOSITORIES[fault.package].line(fault.version, fault.file, fault.line)
    return f"`{fault.file}`, line {fault.line}: `{fault.text}`", url


def devices(where: ExportedCell) -> str:
    """What the cell was run on: a GPU where that is known, and else that it was not."""
    on_gpu = replace(where.cell, device="cuda")
    if where.cell == on_gpu:
        return "Run on a GPU."
    did = next((outcome_text(*row.did) for row in reversed(store.rows(where.failure.name).get(on_gpu, ()))), "")
    rule = expected.first_rule(expected.rules(where.failure), on_gpu, measured.pinned())
    if not did and rule and rule.device:
        did = outcome_text(rule.outcome, *rule.signature[:1])
    how = "Run on CPU with gloo" if where.cell.world_size > 1 else "Run on CPU"
    return f"{how}; on a GPU it does this: {did}." if did else f"{how}; not run on a GPU."
