"""Results on disk: a folder for each run, one JSON line for each finished cell, written at once."""

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from faultline.base import packages
from faultline.base.errors import UNREADABLE, UsageError
from faultline.base.paths import RESULTS, content, real
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import Cell
from faultline.runs.results import Result, read
from faultline.stacks.index import Release


class Machine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run on GPUs ran on: the model of each GPU, and what drives them. `cuda` and `nccl` are torch's own."""

    gpus: tuple[str, ...] = ()
    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    cores: int = 0

    def __str__(self) -> str:
        models = sorted(dict.fromkeys(self.gpus))
        parts = [f"{self.gpus.count(model)} x {model}" for model in models]
        parts += [
            f"{what} {version}" for what in ("driver", "CUDA", "NCCL") if (version := getattr(self, what.lower()))
        ]
        return ", ".join([*parts, *([f"{self.cores} cores"] if self.cores else [])])


class RunInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What run.json says of a run: what was asked, and how far it came.

    - `request`: the options; `cells`: the ids that they choose; `whole`: those of all shards, if this is one
    - `asked`: the stack by its name, unless it is today's; `stack`: its versions
    - of a part of a campaign, its `name`, the `lock` of its environment, or why that is `unusable`
    - `releases`: those in which bisect looks for a change
    - `machine`: of a run on GPUs
    """

    kind: str = "run"
    request: Mapping[str, object] = {}
    cells: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    asked: str = ""
    stack: str = ""
    finished: bool = False
    name: str = ""
    lock: str = ""
    unusable: str = ""
    releases: tuple[Release, ...] = ()
    machine: Machine = Machine()


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: run.json says what was asked, cells.jsonl what came of it."""

    path: Path

    @property
    def cells(self) -> Path:
        return self.path / "cells.jsonl"

    def describe(self, **changes: object) -> None:
        """Change fields of the `RunInfo` in run.json."""
        file = self.path / "run.json"
        before = self.info() if file.exists() else None
        info = msgspec.structs.replace(before or RunInfo(), **changes)
        if info == before:
            return
        partial = file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(info)) + b"\n")
        partial.replace(file)

    def info(self) -> RunInfo:
        try:
            return msgspec.json.decode(content(self.path / "run.json"), type=RunInfo)
        except (OSError, *UNREADABLE):  # msgspec's errors are ValueErrors
            raise UsageError(f"{self.path} is not the results folder of a run: it has no readable run.json") from None

    def read(self, failure: str = "") -> tuple[list[Result], int]:
        """The result of every cell, or of one failure's, and how many lines are none: cut short by an interruption, or
        foreign."""
        by_id: dict[str, Result] = {}
        others = 0
        lines = content(self.cells).decode(errors="replace").splitlines() if self.cells.exists() else []
        for line in lines:
            if not line.strip() or f'"{failure}' not in line:  # most of a run is of others, and slow to read
                continue
            if entry := read(line):
                by_id[entry.cell.id] = entry
            else:
                others += 1
        return list(by_id.values()), others

    def results(self, failure: str = "") -> list[Result]:
        """The result of every cell, or of one failure's; lines that are none are passed over."""
        return self.read(failure)[0]

    @property
    def shown(self) -> str:
        """The folder as the person at the terminal would name it."""
        return str(self.path.relative_to(Path.cwd()) if self.path.is_relative_to(Path.cwd()) else self.path)


class Writer:
    """Appends results as they come, in one thread; they are on disk when `add` returns."""

    def __init__(self, folder: RunFolder) -> None:
        self.written = 0
        torn = folder.cells.exists() and not content(folder.cells).endswith(b"\n") and folder.cells.stat().st_size
        self._file = open(folder.cells, "a")  # noqa: SIM115 - kept open for the whole run
        if torn:
            self._file.write("\n")

    def add(self, *entries: Result) -> None:
        self._file.writelines(json.dumps(entry.as_json(), allow_nan=False) + "\n" for entry in entries)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.written += len(entries)

    def close(self) -> None:
        self._file.close()


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes from measuring into a folder, which is made; waits until one that does so has ended.

    A node that was given up may still be at work there.
    """
    folder.mkdir(exist_ok=True, parents=True)
    lock = FileLock(folder / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"{folder} is in use by another process: waiting until it ends", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def new_run(root: Path = RESULTS, /, *, kind: str = "run", **about: object) -> RunFolder:
    """A fresh folder named after the time, with what `about` says in its run.json; results/latest points to it.

    Another kind of run, ``repeat``, ``chaos`` or ``stack``, has it in its name
    and in run.json, and leaves results/latest alone.
    """
    root.mkdir(exist_ok=True, parents=True)
    while True:
        path = root / time.strftime("%Y-%m-%dT%H-%M-%S" if kind == "run" else f"{kind}-%Y-%m-%dT%H-%M-%S")
        try:
            path.mkdir()
            break
        except FileExistsError:
            time.sleep(0.2)
    folder = RunFolder(path)
    folder.describe(kind=kind, **about)
    if kind == "run":
        partial = root / f".latest-{os.getpid()}"
        partial.symlink_to(path.name)
        partial.replace(root / "latest")
    return folder


def runs(root: Path = RESULTS, *, kind: str = "run") -> Iterator[RunFolder]:
    """All runs of a kind, the newest first."""
    for file in sorted(root.glob("2*/run.json" if kind == "run" else f"{kind}-*/run.json"), reverse=True):
        yield RunFolder(file.parent)


def newest() -> RunFolder:
    """The newest run of the matrix, on whichever stack; raises UsageError where there is none."""
    kinds = ("run", "stack")
    firsts = [folder for kind in kinds if (folder := next(runs(kind=kind), None))]
    return max(firsts, key=lambda folder: folder.path.name.removeprefix("stack-"), default=None) or latest_run()


def latest_run(root: Path = RESULTS, *, kind: str = "run") -> RunFolder:
    """The newest run of a kind; raises UsageError where there is none."""
    if kind != "run":
        folder = next(runs(root, kind=kind), None)
        if not folder:
            raise UsageError(f"there is no {kind} run to resume; start one without --resume")
        return folder
    if not (root / "latest").exists():
        raise UsageError("there is no run yet: start one with `faultline run`")
    return RunFolder((root / "latest").resolve())


def begun(
    kind: str,
    cells: Sequence[Cell],
    versions: Mapping[str, str],
    request: Mapping[str, object],
    asked: str = "",
    resume: bool = False,
    named: Path | None = None,
    **about: object,
) -> tuple[RunFolder, list[Result]]:
    """The folder of a run and the results that it already has: a new folder, or the newest one of these cells; refuses
    one of another stack or of other cells.

    A folder that is `named` is gone on with if it has a run, and else begun: whoever starts the same command again on
    another machine doesn't know how far the first one came. Either way its run.json has what `about` says.
    """
    ids = tuple(cell.id for cell in cells)
    folder = RunFolder(named) if named else latest_run(kind=kind) if resume else None
    if folder and (not named or (named / "run.json").exists()):
        if not resume:
            raise UsageError(f"{folder.shown} has a run: add --resume to go on with it, or name another folder")
        same_stack(folder, versions)
        if {*folder.info().cells} != {*ids}:
            raise UsageError(f"{folder.path.name} was asked for other cells; give the same options or start a new run")
        folder.describe(**about)
        return folder, lasting(folder)
    about = {"request": request, "cells": ids, "asked": asked, "stack": packages.stack_name(versions), **about}
    if folder:
        folder.describe(kind=kind, **about)
    return folder or new_run(kind=kind, **about), []


def goes_on(folder: RunFolder) -> bool:
    """Whether the command that measures into a folder has `--resume`."""
    kind = folder.info().kind
    if kind == "part":
        kind = RunFolder(folder.path.parent).info().kind
    return kind in ("run", "stack", "check", "models", "is-safe", "bisect", "timeline", "replay", "trust")


def chosen(name: str) -> RunFolder:
    """A results folder by path, or the newest run on today's stack."""
    if not name:
        return latest_run()
    folder = RunFolder(real(name))
    folder.info()
    return folder


def undisturbed(name: str) -> RunFolder:
    """`chosen`, but no run whose ranks were killed on purpose: nothing can be learned from what they did."""
    folder = chosen(name)
    if folder.info().kind == "chaos":
        raise UsageError(f"{folder.path.name} is a chaos run: its ranks were killed on purpose; name another run")
    return folder


def entries(folder: RunFolder) -> list[Result]:
    """A run's results; says how many lines of its file are none."""
    every, others = folder.read()
    if others:
        lines = "1 line is" if others == 1 else f"{others} lines are"
        print(f"{folder.shown}/cells.jsonl: {lines} left out, cut short or no result of this version", file=sys.stderr)
    return every


def lasting(folder: RunFolder) -> list[Result]:
    """A run's results, without those that only say what this machine lacked: their cells run again."""
    return [entry for entry in entries(folder) if entry.signature != Signature.MACHINE]


def same_stack(folder: RunFolder, versions: Mapping[str, str] | None = None) -> None:
    """Refuse a run of other versions than these, or than are installed here."""
    here = packages.stack_name(versions or packages.versions())
    other = folder.info().stack or here
    if other != here:
        raise UsageError(f"{folder.path.name} was run on another stack ({other}); start a new run")
