"""The GPUs of this machine, and sets of them that are lent to cells, each to one cell at a time."""

import contextlib
import functools
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import platformdirs
from filelock import FileLock

from faultline.base.errors import ServerDied, UsageError
from faultline.base.machine import cores
from faultline.cells.cell import Cell
from faultline.runs.scratch import lock
from faultline.runs.storage import Machine

VARIABLE = "CUDA_VISIBLE_DEVICES"
Held = TypeVar("Held")
LOOK = 0.05  # seconds between two looks for GPUs that are free
NVLINK = 0  # how far two GPUs are apart; else it is NVML's level of what connects them, and 1 more


@dataclass(frozen=True)
class Gpu:
    """One GPU: its UUID, its model, its memory in bytes, and its number in the order of the PCI addresses."""

    uuid: str
    name: str
    memory: int = 0
    number: int = 0


@dataclass(frozen=True)
class Gpus:
    """GPUs in the order of their PCI addresses; `distances` has how far each pair of UUIDs is apart."""

    gpus: Sequence[Gpu] = ()
    driver: str = ""
    distances: Mapping[frozenset[str], int] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Models and driver: what results may hang on."""
        return f"{', '.join(sorted({gpu.name for gpu in self.gpus}))}; driver {self.driver}"

    def nearest(self, among: Sequence[str], count: int) -> tuple[str, ...]:
        """The `count` of these UUIDs that are least far apart, in sum over all pairs."""

        def apart(chosen: Sequence[str]) -> int:
            return sum(self.distances.get(frozenset(pair), 0) for pair in itertools.combinations(chosen, 2))

        return min(itertools.combinations(among, count), key=apart)


@functools.cache
def here() -> Gpus:
    """This machine's GPUs, or those that CUDA_VISIBLE_DEVICES names; raises UsageError where NVML isn't there."""
    return seen(os.environ.get(VARIABLE))


def seen(visible: str | None) -> Gpus:
    """Those of this machine's GPUs that a value of CUDA_VISIBLE_DEVICES names; raises UsageError as `here` does."""
    import pynvml

    return read(pynvml, visible)


def machine() -> Machine:
    """This machine, as a run's run.json has it."""
    seen = here()
    return Machine(tuple(gpu.name for gpu in seen.gpus), seen.driver, cores=cores())


def read(nvml: ModuleType, visible: str | None = None) -> Gpus:
    """What NVML says of GPUs: of all, or of those that CUDA_VISIBLE_DEVICES names, by numbers or UUIDs.

    Numbers follow the PCI addresses, as with CUDA_DEVICE_ORDER=PCI_BUS_ID. Raises UsageError where
    NVML can't be asked, or a name is no GPU's.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise UsageError(f"NVIDIA's management library (NVML) can't be asked for GPUs: {error}") from None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
        every = {nvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
        asked = [*every] if visible is None else [_named(name, [*every]) for name in visible.split(",") if name]
        numbers = {uuid: number for number, uuid in enumerate(every)}
        gpus = [
            Gpu(
                uuid,
                nvml.nvmlDeviceGetName(every[uuid]),
                nvml.nvmlDeviceGetMemoryInfo(every[uuid]).total,
                numbers[uuid],
            )
            for uuid in asked
        ]
        pairs = itertools.combinations(asked, 2)
        apart = {frozenset(pair): _distance(nvml, *(every[uuid] for uuid in pair)) for pair in pairs}
        return Gpus(gpus, nvml.nvmlSystemGetDriverVersion(), apart)
    finally:
        nvml.nvmlShutdown()


def _named(name: str, uuids: Sequence[str]) -> str:
    """The GPU that an entry of CUDA_VISIBLE_DEVICES names: a number, or the beginning of a UUID."""
    name = name.strip()
    fitting = [uuids[int(name)]] if name.isdecimal() and int(name) < len(uuids) else []
    fitting += [uuid for uuid in uuids if not name.isdecimal() and uuid.startswith(name)]
    if name.startswith("MIG-"):
        raise UsageError(f"{VARIABLE} names {name!r}, a part of a GPU (MIG), which cells can't have: name whole ones")
    if len(fitting) != 1:
        raise UsageError(f"{VARIABLE} names {name!r}, which is none of the {len(uuids)} GPUs here")
    return fitting[0]


def _distance(nvml: ModuleType, one: object, other: object) -> int:
    """How far two GPUs are apart; as far as can be where NVML doesn't know, as in some virtual machines."""
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetP2PStatus(one, other, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
            return NVLINK
    with contextlib.suppress(nvml.NVMLError):
        return 1 + int(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    return 1 + int(nvml.NVML_TOPOLOGY_SYSTEM)


def needed(cell: Cell) -> int:
    """How many GPUs a cell wants: one for each rank, also of the half of a life that saves."""
    return max(cell.world_size, cell.saved_by) if cell.device == "cuda" else 0


@contextlib.contextmanager
def lent(cell: Cell, ended: Callable[[], bool] = lambda: False, per_gpu: int = 1) -> Iterator[tuple[Gpu, ...]]:
    """The GPUs that a cell has as long as this lasts: none for the CPU, all where it wants more.

    It has them for itself, or shares each with `per_gpu` - 1 others. Whoever waits longest gets them first, so a cell
    that wants four isn't passed for ever by those that want two. This holds among all processes of a user on a machine.
    Raises ServerDied where `ended` says that nobody wants them any more.
    """
    if cell.device != "cuda":
        yield ()
        return
    gpus, folder = here(), _locks()
    with _first(folder, ended):
        held = _until(lambda: _nearest_free(gpus, needed(cell), folder, per_gpu), ended)
    try:
        yield tuple(gpu for gpu in gpus.gpus if gpu.uuid in held)
    finally:
        for each in held.values():
            each.release()


@contextlib.contextmanager
def taken(these: Sequence[Gpu], ended: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Have these GPUs and no others, as long as this lasts, among all who ask with `lent` or this; raises as `lent`."""
    with contextlib.ExitStack() as held:
        if these:
            folder = _locks()
            with _first(folder, ended):
                for gpu in these:
                    held.callback(_until(functools.partial(lock, folder / gpu.uuid), ended).release)
        yield


@contextlib.contextmanager
def _first(folder: Path, ended: Callable[[], bool]) -> Iterator[None]:
    """Wait until nobody else waits for GPUs, and have them all wait for this one."""
    turn = _until(lambda: lock(folder / "first"), ended)
    try:
        yield
    finally:
        turn.release()


def _locks() -> Path:
    """The folder of locks on GPUs, by machine: several may share a user's folders."""
    folder = platformdirs.user_cache_path("faultline") / "gpus" / platform.node()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _until(look: Callable[[], Held | None], ended: Callable[[], bool]) -> Held:
    """What a look gives, once it gives something."""
    while not (seen := look()):
        if ended():
            raise ServerDied("the run ended before a GPU was free")
        time.sleep(LOOK)
    return seen


def _nearest_free(gpus: Gpus, wanted: int, folder: Path, per_gpu: int) -> dict[str, FileLock] | None:
    """The locks of as many GPUs with a free place, least far apart; None if there are too few. One may ask at a time.

    A GPU with fewer cells comes first.
    """
    free: dict[str, FileLock] = {}
    count = min(wanted, len(gpus.gpus))
    for place in range(per_gpu):
        for gpu in gpus.gpus:
            name = f"{gpu.uuid}.{place}" if place else gpu.uuid
            if gpu.uuid not in free and (held := lock(folder / name)):
                free[gpu.uuid] = held
        if len(free) >= count:
            break
    chosen = gpus.nearest([*free], count) if len(free) >= count else ()
    for uuid in free.keys() - {*chosen}:
        free.pop(uuid).release()
    return {uuid: free[uuid] for uuid in chosen} or None
