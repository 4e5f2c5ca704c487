"""From runs on GPUs, also of files that somebody sent, to observations/gpus/: what cells did, and why it differs."""

import contextlib
import functools
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from faultline.base.errors import UsageError
from faultline.base.markdown import headed
from faultline.base.markdown import row as table_row
from faultline.base.packages import stack_name, untagged
from faultline.base.paths import content
from faultline.base.text import cut
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, Signature, outcome_text
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.on_gpus import GpuMachine, GpuRow, GpuRuns, Reason, everything, reasons
from faultline.cells.rules import possible_cells
from faultline.observations import measured
from faultline.runs import results, sendable, storage
from faultline.runs.results import Result
from faultline.runs.sendable import CELLS, RUN
from faultline.runs.storage import Machine, RunInfo

BACKENDS = ("nccl", "gloo", "none")
UNKNOWN = "nobody has said why"


def rows_of(machine: storage.Machine, results: Sequence[Result]) -> list[tuple[GpuMachine, GpuRow]]:
    """What cells on GPUs did on the stacks of stacks/, of those that can prove it and whose GPU is known."""
    machine = sendable.machine(machine, results)  # a run that was interrupted doesn't say all of it
    ran = []
    for result in results:
        known = measured.named_as(result.stack)
        if result.cell.device == "cpu" or result.outcome == Outcome.INVALID or not known:
            continue
        if where := ran_on(machine, result):
            shown = result.evidence.get("backend", "")
            backend = shown if shown in BACKENDS else ""
            ran.append((where, GpuRow(result.cell.id, backend, result.outcome, result.signature)))
    return ran


def ran_on(machine: storage.Machine, result: Result) -> GpuMachine | None:
    """The models of GPUs on which a cell's ranks ran, and what drove them; None where neither they nor the run say so.

    A cell that no rank was started for ran on none: it counts for the machine if that has GPUs of one model.
    """
    shown = [rank.evidence for rank in result.ranks]
    models = sorted({str(evidence["gpu"]) for evidence in shown if evidence.get("gpu")}) or sorted({*machine.gpus})
    if not models or (len(models) > 1 and not any(evidence.get("gpu") for evidence in shown)):
        return None
    driver, cuda, nccl = (sendable.reported(shown, name, getattr(machine, name)) for name in ("driver", "cuda", "nccl"))
    return GpuMachine(" + ".join(models), driver, cuda, nccl, untagged(result.stack))


def merge_rows(before: Iterable[GpuRuns], ran: Iterable[tuple[GpuMachine, GpuRow]]) -> list[GpuRuns]:
    """What was measured, with new rows: a cell has one for each machine, that of the newest run."""
    by_name = {each.machine.name: each for each in before}
    new: dict[str, dict[str, GpuRow]] = {}
    for machine, row in ran:
        by_name.setdefault(machine.name, GpuRuns(machine))
        new.setdefault(machine.name, {})[row.cell] = row
    return [replace(each, rows=_with(each.rows, new.get(name, {}))) for name, each in sorted(by_name.items())]


def _with(rows: Sequence[GpuRow], new: Mapping[str, GpuRow]) -> Sequence[GpuRow]:
    known = {row.cell: row for row in rows if row.cell in ids(row.cell.partition("/")[0])}
    return sorted({**known, **new}.values())


@functools.cache
def ids(failure: str) -> frozenset[str]:
    """The ids of a failure's cells on GPUs, as the matrix has them by now."""
    known = failures().get(failure)
    return frozenset(cell.id for cell, _ in possible_cells(known, "cuda")) if known else frozenset()


def differing() -> dict[Reason, list[tuple[GpuRow, str]]]:
    """Rows that aren't what the CPU does with the same versions, and that, by the reason: that of a rule for GPUs, one
    of reasons.toml, or `UNKNOWN`."""
    by_reason: dict[Reason, list[tuple[GpuRow, str]]] = {}
    for each in everything():
        for row in each.rows:
            cell, stack = Cell.parse(row.cell), each.machine.stack
            rules = expected.rules(failures()[cell.failure])
            on_cpu = expected.ruled_on_cpu(failures()[cell.failure], cell, stack)
            rule = expected.first_rule(rules, cell, stack) or expected.TRAINS
            as_ruled = Reason(cells=(), backend="", outcome=row.outcome, signature=row.signature, why=UNKNOWN)
            if expected.verdict(expected.ruled(rules, cell, stack), *row.did) != "expected":
                reason = next((known for known in reasons() if known.explains(row)), as_ruled)
            elif expected.verdict(on_cpu, *row.did) != "expected":
                reason = replace(as_ruled, why=rule.reason or UNKNOWN, record=rule.record)
            else:
                continue
            by_reason.setdefault(reason, []).append((row, outcome_text(on_cpu.outcome, *on_cpu.signatures)))
    return by_reason


def table() -> str:
    """Markdown: how many cells did what the CPU does, and each reason of the others with its cells."""
    by_reason, ran = differing(), sum(len(each.rows) for each in everything())
    lines = []
    for reason, found in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        names = Counter(row.cell.partition("/")[0] for row, _ in found)
        cells = ", ".join(f"{number} of `{name}`" for name, number in names.items())
        more = filter(None, (reason.record, reason.decide and f"`{reason.decide}`"))
        on_cpu = ", ".join(sorted({did for _, did in found}))
        lines.append(
            table_row(cells, on_cpu, outcome_text(reason.outcome, reason.signature), "; ".join((reason.why, *more)))
        )
    same = ran - sum(map(len, by_reason.values()))
    sums = f"Of {ran:,} cells, {same:,} did what the CPU does with the same versions, and {ran - same} something else:"
    return "\n".join((sums, "", *headed(("cells", "on the CPU", "on the GPU", "why"), lines)))


LARGEST = {RUN: 8 << 20, CELLS: 256 << 20}  # bytes of each file; a whole run has 30 MiB
LONGEST = 20_000  # characters of a text that would be recorded
PLAIN = re.compile(r"[\w .,;:()+/@-]{0,100}", re.ASCII)  # names of models and versions
SHOWN = ("gpu", "backend", "driver", "cuda", "nccl")  # evidence that would be recorded
SIGNAL = re.compile("SIG[A-Z0-9]{2,10}")


def read_received(file: Path) -> tuple[Machine, list[Result]]:
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
