"""Results that somebody sent (see runs/sendable.py): read as a stranger's file is, and refused in a line."""

import contextlib
import io
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from faultline.base.errors import UsageError
from faultline.base.packages import stack_name
from faultline.base.paths import content
from faultline.base.text import cut
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.maintain.on_gpus import ids
from faultline.observations import measured
from faultline.runs import results
from faultline.runs.results import Result
from faultline.runs.sendable import CELLS, RUN
from faultline.runs.storage import Machine, RunInfo

LARGEST = {RUN: 8 << 20, CELLS: 256 << 20}  # bytes of each file; a whole run has 30 MiB
LONGEST = 20_000  # characters of a text that would be recorded
PLAIN = re.compile(r"[\w .,;:()+/@-]{0,100}", re.ASCII)  # names of models and versions
SHOWN = ("gpu", "backend", "driver", "cuda", "nccl")  # evidence that would be recorded
SIGNAL = re.compile("SIG[A-Z0-9]{2,10}")


def read(file: Path) -> tuple[Machine, list[Result]]:
    """The machine and the results of a file; raises UsageError for what no run on GPUs would write."""
    contents = _unpacked(file)
    try:
        info = msgspec.json.decode(contents[RUN], type=RunInfo)
        lines = contents[CELLS].decode().splitlines()
    except ValueError as error:  # msgspec's errors are ValueErrors, as are those of UTF-8
        raise refused(file, f"{RUN} or {CELLS} can't be read: {error}") from None
    for text in (*info.machine.gpus, info.machine.driver, info.machine.cuda, info.machine.nccl):
        if not PLAIN.fullmatch(text):
            raise refused(file, f"{RUN} names a machine as no driver does: {cut(text, 80)!r}")
    entries: dict[Cell, Result] = {}
    for number, line in enumerate(lines, 1):
        entry = None
        with contextlib.suppress(RecursionError):
            entry = results.read(line)
        if not entry:
            raise refused(file, f"line {number} of {CELLS} is no result of this version")
        if problem := _problem(entry):
            raise refused(file, f"line {number} of {CELLS}: {problem}")
        if entry.cell in entries:
            raise refused(file, f"line {number} of {CELLS}: {entry.cell.id} is there twice")
        entries[entry.cell] = entry
    if not entries:
        raise refused(file, "there is no result in it")
    return info.machine, [*entries.values()]


def refused(file: Path, why: str) -> UsageError:
    return UsageError(f"{file.name} is not recorded: {why}")


def _unpacked(file: Path) -> Mapping[str, bytes]:
    """The two files that it must have, and no others; never more of one than it may be, whatever its header says."""
    try:
        with zipfile.ZipFile(io.BytesIO(content(file, sum(LARGEST.values())))) as whole:
            names = [entry.filename for entry in whole.infolist()]
            if sorted(names) != sorted(LARGEST):
                raise refused(file, f"it must hold {RUN} and {CELLS}, and nothing else")
            contents = {}
            for name, largest in LARGEST.items():
                with whole.open(name) as packed:
                    contents[name] = packed.read(largest + 1)
                if len(contents[name]) > largest:
                    raise refused(file, f"{name} is larger than {largest >> 20} MiB")
            return contents
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise refused(file, f"it can't be unpacked: {error}") from None


def _problem(entry: Result) -> str:
    """What is wrong with a result, of all that would be recorded; nothing where it may be true."""
    cell = entry.cell
    if cell.id not in ids(cell.failure):
        return f"{cut(cell.id, 200)} is no cell of the matrix on GPUs"
    if not measured.named_as(entry.stack):
        return f"it was run with {cut(stack_name(entry.stack), 200)}, and no file of stacks/ has these versions"
    if not _is_signature(failures()[cell.failure], entry):
        return f"{entry.outcome} has no signature {cut(entry.signature, 40)!r} in {cell.failure}"
    texts = [entry.detail, *(text for rank in entry.ranks for text in (rank.stack, rank.log))]
    texts += [text for rank in entry.ranks if rank.error for text in (rank.error.message, rank.error.traceback)]
    if any(len(text) > LONGEST for text in texts):
        return f"a text is longer than {LONGEST:,} characters"
    shown = [str(rank.evidence.get(name, "")) for rank in entry.ranks for name in SHOWN]
    strange = [text for text in shown if not PLAIN.fullmatch(text)]
    return f"evidence names a machine as no driver does: {cut(strange[0], 80)!r}" if strange else ""


def _is_signature(failure: Failure, entry: Result) -> bool:
    if entry.outcome == Outcome.RAISES:
        return entry.signature in {*failure.errors, Signature.OTHER, Signature.CHECK}
    if entry.outcome in (Outcome.TRAINS, Outcome.IMPOSSIBLE):
        return not entry.signature
    return entry.signature in [*Signature] or bool(SIGNAL.fullmatch(entry.signature))
