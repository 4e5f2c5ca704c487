"""Campaigns: cells on several stacks, each with a results folder of its own within one, which an interruption keeps."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from filelock import BaseFileLock, FileLock, Timeout
from rich.console import Console

from faultline.base.errors import NeverReady, Uninstallable, UsageError
from faultline.base.packages import stack_name
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.runs import cache, measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.engines import LOCAL, Engine
from faultline.runs.estimates import estimate
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, requests
from faultline.stacks.environments import Environment
from faultline.stacks.requests import Stack


@dataclass(frozen=True)
class Campaign:
    """One question that takes several stacks: where its results are, and how many cells run at a time.

    Its lock keeps others from going on with it at the same time. If it is `fresh`, no cached results are taken.
    """

    folder: RunFolder
    workers: int
    lock: BaseFileLock | None = None
    fresh: bool = False
    engine: Engine = LOCAL


@dataclass(frozen=True)
class Measured:
    """What became of cells on a stack: their results, or in `unusable` why there are none.

    `lock` has the exact version of every package, a line each; it is empty
    where the stack could not be resolved.
    """

    name: str
    lock: str = ""
    results: Sequence[Result] = ()
    unusable: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def outcomes(self) -> dict[str, Did]:
        """The outcome and signature of each cell by its id."""
        return {entry.cell.id: entry.did for entry in self.results}


def begin(
    kind: str,
    request: Mapping[str, object],
    workers: int,
    resume: bool = False,
    fresh: bool = False,
    engine: Engine = LOCAL,
) -> Campaign:
    """A new folder ``results/<kind>-<time>``, or the newest of the kind that answers the same request.

    It is only the same as long as what is installed here is. 0 workers are as many as the engine has room for, at any
    time where it isn't `here`.
    """
    asked = {**request, "installed": _digest("\n".join(requests.installed()))}
    if resume:
        folder = next((run for run in storage.runs(kind=kind) if run.info().request == asked), None)
        if not folder:
            raise UsageError(f"no {kind} run with these options and packages can be resumed; leave out --resume")
    else:
        folder = storage.new_run(kind=kind, request=asked)
    lock = FileLock(folder.path / "lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(f"{folder.path.name} is already running in another process") from None
    return Campaign(folder, workers or (engine.room() if engine.here else 0), lock, fresh, engine)


def resolved(campaign: Campaign, name: str, stack: Stack) -> Measured:
    """The exact versions of a stack, of which no environment is made yet; resolved once for each name."""
    folder = part(campaign, name)
    info = folder.info()
    if not (info.lock or info.unusable):
        try:
            folder.describe(lock=locked(stack))
        except Uninstallable as error:
            folder.describe(unusable=str(error))
        info = folder.info()
    return Measured(name, info.lock, unusable="" if info.lock else info.unusable)


class Enough(Exception):
    """Raised by whoever sees results to end a measurement; what ran until then counts."""


def measure(
    campaign: Campaign,
    name: str,
    stack: Stack,
    cells: Sequence[Cell],
    again: int = 0,
    seen: Callable[[Result], None] = lambda entry: None,
) -> Measured:
    """Run cells on a stack, those that the campaign has under this name already left out, and those that are cached.

    `again` is how many results of the cells this one is to be held against, so that none of these is taken for it.
    `seen` is given each result as it comes, and may raise `Enough`.

    What was resolved once isn't resolved again: a later call under the same name has the
    same versions, whatever the index offers by then. A stack whose ranks could
    not start is tried again: a busy machine may have been to blame.
    """
    batch = _batch(campaign, name, stack, cells, again)
    if isinstance(batch, Measured):
        return batch
    try:
        for entry in batch.known:
            seen(entry)
        if batch.cells:
            measurement.measure([batch], campaign.workers, campaign.engine, on_result=seen)
    except Enough:
        return _measured(batch, name, cells, finished=False)
    except NeverReady as error:
        batch.written_to.describe(unusable=str(error))
    return _measured(batch, name, cells)


def measure_each(campaign: Campaign, stacks: Mapping[str, Stack], cells: Sequence[Cell]) -> list[Measured]:
    """Run the same cells on several stacks, by name: at a time where the campaign's engine can, else in their order.

    Each is as `measure` has it, but the machines of a fleet alone make environments, and nothing is cached of them.
    """
    if campaign.engine.here:
        return [measure(campaign, name, stack, cells) for name, stack in stacks.items()]
    asked = {name: _batch(campaign, name, stack, cells, there=True) for name, stack in stacks.items()}
    if batches := [batch for batch in asked.values() if isinstance(batch, Batch) and batch.cells]:
        measurement.measure(batches, campaign.workers, campaign.engine)
    return [_measured(each, name, cells) if isinstance(each, Batch) else each for name, each in asked.items()]


def _batch(
    campaign: Campaign, name: str, stack: Stack, cells: Sequence[Cell], again: int = 0, there: bool = False
) -> Batch | Measured:
    """What is to be run on a stack, whose environment is made here unless it is made `there`; or why nothing can be."""
    folder = part(campaign, name)
    info = folder.info()
    if info.unusable and not info.lock:
        return Measured(name, unusable=info.unusable)
    try:
        if there and not stack.here:
            environment = Environment("", info.lock or locked(stack))
        else:
            environment = ready(stack, info.lock)
    except Uninstallable as error:
        folder.describe(unusable=str(error))
        return Measured(name, unusable=str(error))
    line = stack_name(environment.versions)
    folder.describe(lock=environment.lock, stack=line, cells=tuple(cell.id for cell in cells), unusable="")
    wanted = {*cells}
    known = [entry for entry in storage.lasting(folder) if entry.cell in wanted]
    if measurement.without(cells, known):
        note(f"{name}: {line}")
    batch = Batch(cells, environment, folder, known, refused=lambda error: folder.describe(unusable=str(error)))
    return measurement.prepare(batch, campaign.engine, campaign.fresh, again)


def _measured(batch: Batch, name: str, cells: Sequence[Cell], finished: bool = True) -> Measured:
    """What has become of a stack's cells."""
    lock, folder = batch.stack.lock, batch.written_to
    if unusable := folder.info().unusable:
        return Measured(name, lock, unusable=unusable)
    if finished:
        folder.describe(finished=True)
    results = [entry for entry in folder.results() if entry.cell in {*cells}]
    return Measured(name, lock, results, versions=batch.stack.versions)


def lacking(campaign: Campaign, name: str, stack: Stack, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that a measurement under this name would have to run."""
    folder = part(campaign, name)
    keep = cache.of(ready(stack, folder.info().lock), cells[0].device, here=campaign.engine.here)
    missing = measurement.without(cells, folder.results())
    return missing if campaign.fresh else measurement.without(missing, keep.take(missing))


def locked(stack: Stack) -> str:
    """What is installed here, or what a stack resolves to, a line for each package."""
    return environments.ready(stack).lock if stack.here else environments.resolve(stack)


def ready(stack: Stack, lock: str) -> Environment:
    """The environment of a stack, or the one that a lock of it names."""
    return environments.make(lock) if lock and not stack.here else environments.ready(stack)


def part(campaign: Campaign, name: str) -> RunFolder:
    """A stack's results within a campaign, as the results of a run."""
    folder = RunFolder(campaign.folder.path / file_name(name))
    if not (folder.path / "run.json").exists():
        folder.path.mkdir(exist_ok=True)
        folder.describe(kind="part", name=name)
    return folder


def file_name(name: str) -> str:
    """A folder's name for any text: a file system takes 255 bytes, and a bump of the whole stack has more."""
    text = re.sub(r"[^\w.=+-]+", "-", name, flags=re.ASCII)
    return text if len(text) <= 100 else f"{text[:80]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def announce(campaign: Campaign, cells: Sequence[Cell], runs: int, more: str = "") -> None:
    """Say before anything is measured what that will take; `more` says what isn't in it."""
    beside = f"; {more}" if more else ""
    workers = campaign.workers or campaign.engine.room()
    note(f"{estimate(cells, workers, runs)}{beside}; an environment that is not there yet is made first")


def note(text: str) -> None:
    """A line of progress, beside what a command prints."""
    Console(stderr=True).print(text, style="dim", markup=False, highlight=False, soft_wrap=True)
