"""What cells did on GPUs: the files of observations/gpus/, one for each kind of machine and stack."""

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from faultline.base.errors import UNREADABLE, UsageError
from faultline.base.packages import stack_name
from faultline.base.paths import OBSERVATIONS
from faultline.base.text import matches
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell

FOLDER = OBSERVATIONS / "gpus"


@dataclass(frozen=True)
class GpuMachine:
    """What outcomes may hang on: the models of the GPUs that a cell ran on, what drives them, and the stack."""

    gpu: str
    driver: str = ""
    cuda: str = ""
    nccl: str = ""
    stack: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for a file: the models, and a digest of everything."""
        models = re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-")
        return f"{models[:40]}-{hashlib.blake2b(msgspec.json.encode(self, order='sorted'), digest_size=4).hexdigest()}"


class GpuRow(NamedTuple):
    """What a cell did, by its whole id; `backend` is gloo where its ranks shared a GPU, and none in one process."""

    cell: str
    backend: str
    outcome: str
    signature: str = ""

    @property
    def did(self) -> Did:
        return Did(self.outcome, self.signature)


@dataclass(frozen=True)
class GpuRuns:
    """What one kind of machine did; of a cell, the newest run."""

    machine: GpuMachine
    rows: Sequence[GpuRow] = ()


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why cells, by patterns of their ids, did on a GPU what no rule says; `decide` settles what is only likely."""

    cells: tuple[str, ...]
    backend: str
    outcome: str
    signature: str = ""
    why: str
    record: str = ""
    decide: str = ""

    def explains(self, row: GpuRow) -> bool:
        did = (row.backend, *row.did)
        return did == (self.backend, self.outcome, self.signature) and matches(row.cell, self.cells)


@dataclass(frozen=True)
class Reasons:
    """All of reasons.toml."""

    reason: tuple[Reason, ...] = ()


def reasons() -> tuple[Reason, ...]:
    """The reasons of reasons.toml, for rows of all machines."""
    return loading.read_table(FOLDER / "reasons.toml", Reasons).reason


def runs_of(cell: Cell, versions: Mapping[str, str]) -> Sequence[tuple[GpuMachine, GpuRow]]:
    """What a cell did with these versions on each kind of GPU where it was run; nothing for the CPU."""
    return () if cell.device == "cpu" else _by_cell(stack_name(versions)).get(cell.id, ())


def everything() -> list[GpuRuns]:
    """All that was measured, in the order of the files' names."""
    return [_read(file) for file in sorted(FOLDER.glob("*.jsonl"))]


def stacks() -> list[Mapping[str, str]]:
    """The versions with which anything was measured, each once."""
    return [*{stack_name(each.machine.stack): each.machine.stack for each in everything()}.values()]


def write(measured: GpuRuns) -> Path:
    """Write the file of a machine: its description in the first line, then a line for each cell, sorted."""
    file = FOLDER / f"{measured.machine.name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [list(row) if row.signature else list(row[:-1]) for row in sorted(measured.rows)]
    partial = file.with_suffix(".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in [measured.machine, *rows]))
    partial.replace(file)
    _by_cell.cache_clear()
    return file


@functools.cache
def _by_cell(stack: str) -> Mapping[str, Sequence[tuple[GpuMachine, GpuRow]]]:
    by_cell: dict[str, list[tuple[GpuMachine, GpuRow]]] = {}
    for each in everything():
        for row in each.rows if stack_name(each.machine.stack) == stack else ():
            by_cell.setdefault(row.cell, []).append((each.machine, row))
    return by_cell


def _read(file: Path) -> GpuRuns:
    """Raises UsageError for a file with any other content."""
    first, _, rest = file.read_bytes().partition(b"\n")
    try:
        return GpuRuns(msgspec.json.decode(first, type=GpuMachine), msgspec.json.Decoder(GpuRow).decode_lines(rest))
    except UNREADABLE as error:
        raise UsageError(f"{file} does not hold what cells did on GPUs: {error}") from None
