"""Runs and their folders: cells measured into one, and the one that is meant, refused where it doesn't fit."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from faultline.base import packages
from faultline.base.errors import NeverReady, NoRoom, UsageError
from faultline.base.paths import real
from faultline.base.text import count
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import Cell
from faultline.runs import cache, engines, pool, progress, results, storage
from faultline.runs.cache import Cache
from faultline.runs.driver import Engine, Part, Plan, raised
from faultline.runs.results import Result
from faultline.runs.runner import RunCell, run_cell
from faultline.runs.storage import RunFolder
from faultline.stacks.environments import Environment


@dataclass(frozen=True)
class Share:
    """Cells to run on one stack into a folder that has `known` results; `keep` is given each new one as well.

    `refused` is called instead if nothing can run them; by default that ends the whole measurement.
    """

    cells: Sequence[Cell]
    stack: Environment
    folder: RunFolder
    known: Sequence[Result] = ()
    keep: Cache | None = None
    refused: Callable[[NeverReady], None] = raised


def measure(
    cells: Sequence[Cell],
    plan: Plan,
    folder: RunFolder,
    known: Sequence[Result] = (),
    wrong: str = progress.UNEXPECTED,
    keep: Cache | None = None,
    seen: Callable[[Result], None] | None = None,
    engine: Engine = pool.LOCAL,
) -> None:
    """Run cells as planned, behind a progress bar; each result is written as it comes.

    `wrong` says what the bar counts; `keep` and `seen` are given each result as well.
    """
    measure_each([Share(cells, plan.stack, folder, known, keep)], plan.workers, plan.run, wrong, seen, engine)


def measure_each(
    shares: Sequence[Share],
    workers: int,
    run: RunCell = run_cell,
    wrong: str = progress.UNEXPECTED,
    seen: Callable[[Result], None] | None = None,
    engine: Engine = pool.LOCAL,
) -> None:
    """Run cells of several stacks at a time, which the engine must be able to; otherwise as `measure`.

    What isn't `here` may get more workers on the way, up to those that were asked for.
    """
    cells = [cell for share in shares for cell in share.cells]
    known = [entry for share in shares for entry in share.known]
    now, fewer = engine.workers(cells, workers) if cells else (workers, "")
    if fewer:
        print(fewer, file=sys.stderr)
    writers = [storage.Writer(share.folder) for share in shares]
    for share in shares:
        share.folder.describe(finished=False)
        if share.keep:
            share.keep.begin(share.cells)
    try:
        with progress.progress(Console(stderr=True), cells, known, now, wrong) as advance:

            def done(share: Share, writer: storage.Writer, entry: Result) -> None:
                writer.add(entry)
                if share.keep:
                    share.keep.add(entry)
                advance(entry)
                if seen:
                    seen(entry)

            parts = [
                Part(share.cells, share.stack, partial(done, share, writer), share.refused)
                for share, writer in zip(shares, writers, strict=True)
            ]
            engines.run_parts(parts, now if engine.here else workers, run, engine)
    except (OSError, KeyboardInterrupt, NoRoom) as error:
        ran, folder = len(known) + sum(writer.written for writer in writers), shares[0].folder
        shown = folder if len(shares) == 1 else RunFolder(folder.path.parent)
        notes = [
            f"{ran} of {count(len(known) + len(cells), 'cell')} ran",
            f"the results so far are in {shown.shown}" if ran else "",
            "the same command with --resume goes on" if _goes_on(folder) else "",
        ]
        error.add_note("; ".join(filter(None, notes)))
        raise
    finally:
        for writer in writers:
            writer.close()
        if any(share.keep for share in shares):
            cache.prune()


def taken(cells: Sequence[Cell], folder: RunFolder, keep: Cache, only_expected: bool = False) -> list[Result]:
    """The cached results of cells, written into a folder as if they had been measured for it."""
    entries = [entry for entry in keep.take(cells) if not only_expected or results.as_expected(entry)]
    if entries:
        writer = storage.Writer(folder)
        writer.add(*entries)
        writer.close()
        print(cache.note(entries, cells), file=sys.stderr)
    return entries


def without(cells: Iterable[Cell], known: Iterable[Result]) -> list[Cell]:
    """The cells of which there is no result yet."""
    there = {entry.cell for entry in known}
    return [cell for cell in cells if cell not in there]


def begun(
    kind: str,
    cells: Sequence[Cell],
    versions: Mapping[str, str],
    request: Mapping[str, object],
    asked: str = "",
    resume: bool = False,
    named: Path | None = None,
) -> tuple[RunFolder, list[Result]]:
    """The folder of a run and the results that it already has: a new folder, or the newest one of these cells.

    A folder that is `named` is gone on with if it has a run, and else begun: whoever starts the same command again on
    another machine doesn't know how far the first one came.
    """
    folder = RunFolder(named) if named else None
    if folder and (folder.path / "run.json").exists():
        if not resume:
            raise UsageError(f"{folder.shown} has a run: add --resume to go on with it, or name another folder")
        return folder, resumable(folder, cells, versions)
    if resume and not folder:
        folder = storage.latest_run(kind=kind)
        return folder, resumable(folder, cells, versions)
    folder = folder or storage.new_run(kind=kind)
    ids, stack = tuple(cell.id for cell in cells), packages.stack_name(versions)
    folder.describe(kind=kind, request=request, cells=ids, asked=asked, stack=stack)
    return folder, []


def _goes_on(folder: RunFolder) -> bool:
    """Whether the command that measures into a folder has `--resume`."""
    kind = folder.info().kind
    if kind == "part":
        kind = RunFolder(folder.path.parent).info().kind
    return kind in ("run", "stack", "check", "models", "is-safe", "bisect", "timeline", "replay", "trust")


def chosen(name: str) -> RunFolder:
    """A results folder by path, or the newest run on today's stack."""
    if not name:
        return storage.latest_run()
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


def resumable(folder: RunFolder, cells: Iterable[Cell], versions: Mapping[str, str]) -> list[Result]:
    """What an interrupted run already has; refuses one of another stack or of other cells."""
    same_stack(folder, versions)
    if set(folder.info().cells) != {cell.id for cell in cells}:
        raise UsageError(f"{folder.path.name} was asked for other cells; give the same options or start a new run")
    return lasting(folder)


def lasting(folder: RunFolder) -> list[Result]:
    """A run's results, without those that only say what this machine lacked: their cells run again."""
    return [entry for entry in entries(folder) if entry.signature != Signature.MACHINE]


def same_stack(folder: RunFolder, versions: Mapping[str, str] | None = None) -> None:
    """Refuse a run of other versions than these, or than are installed here."""
    here = packages.stack_name(versions or packages.versions())
    other = folder.info().stack or here
    if other != here:
        raise UsageError(f"{folder.path.name} was run on another stack ({other}); start a new run")
