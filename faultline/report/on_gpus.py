"""A run on GPUs beside the CPU: each cell's outcome there and here, and which of them anybody has measured before."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rich.console import Console
from rich.text import Text

from faultline.base.console import write_line
from faultline.base.packages import stack_name
from faultline.base.text import count, cut, here, listing, one_line
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did, Outcome, outcome_text
from faultline.cells import expected, on_gpus, words
from faultline.cells.cell import MARGIN, TOLERANCE, Cell
from faultline.cells.expected import Basis, Expectation
from faultline.observations import measured
from faultline.report import terminal
from faultline.runs.results import Result, as_expected
from faultline.runs.storage import RunInfo


class GpuKind(StrEnum):
    """What came of a cell on a GPU, beside what it does on the CPU."""

    SAME = "same"
    KNOWN = "known"
    NEW = "new"
    AGAINST = "against"
    NOT_RUN = "not run"


# Those that need somebody's eyes come first; `SAME` needs no list.
MEANING = {
    GpuKind.NEW: "other than on the CPU, and nobody had measured it on a GPU",
    GpuKind.AGAINST: "other than was measured or reported on a GPU",
    GpuKind.NOT_RUN: "could not run, or could not prove what it ran",
    GpuKind.KNOWN: "other than on the CPU, as expected",
}
LEGEND = f"{GpuKind.SAME}: as on the CPU. " + " ".join(f"{kind}: {text}." for kind, text in MEANING.items())
BASES = {
    Basis.MEASURED: "measured on a GPU",
    Basis.CPU: "not measured on a GPU",
    Basis.REPORT: "as reported, not measured",
    Basis.GPUS_DIFFER: "kinds of GPUs differ",
}


@dataclass(frozen=True)
class Compared:
    """One result on a GPU, what the same cell does on the CPU, and what that makes of it."""

    result: Result
    on_cpu: Expectation
    kind: GpuKind

    @property
    def change(self) -> str:
        """Both outcomes: ``trains -> raises (two-devices)``."""
        return f"{outcome_text(self.on_cpu.outcome, *self.on_cpu.signatures)} -> {self.result.did}"


def compared(results: Iterable[Result]) -> list[Compared]:
    """Every result on a GPU beside the CPU's, by cell; without those of failures that the catalogue has no more."""
    every = []
    for result in sorted(results, key=lambda result: result.cell.id):
        failure = failures().get(result.cell.failure)
        if result.cell.device == "cpu" or not failure:
            continue
        on_cpu = expected.ruled_on_cpu(failure, result.cell, result.stack)
        every.append(Compared(result, on_cpu, _kind(result, on_cpu)))
    return every


def _kind(result: Result, on_cpu: Expectation) -> GpuKind:
    if result.outcome == Outcome.INVALID:
        return GpuKind.NOT_RUN
    if as_expected(result):
        same = expected.verdict(on_cpu, *result.did) == "expected"
        return GpuKind.SAME if same else GpuKind.KNOWN
    if result.outcome == Outcome.IMPOSSIBLE:
        return GpuKind.NOT_RUN
    return GpuKind.NEW if result.expected.basis == Basis.CPU else GpuKind.AGAINST


def rows(every: Iterable[Compared], missing: Iterable[str] = ()) -> dict[str, list[int]]:
    """How many cells of each failure are of each `Kind`; `missing` are ids of cells that were asked for."""
    numbers: dict[str, Counter[GpuKind]] = {}
    for each in every:
        numbers.setdefault(each.result.cell.failure, Counter())[each.kind] += 1
    for cell in missing:
        numbers.setdefault(cell.partition("/")[0], Counter())[GpuKind.NOT_RUN] += 1
    return {name: [numbers[name][kind] for kind in GpuKind] for name in sorted(numbers)}


def differing(every: Collection[Compared]) -> dict[GpuKind, list[Compared]]:
    """The cells that didn't do as on the CPU, in the order of `MEANING`."""
    by_kind = {kind: [each for each in every if each.kind == kind] for kind in MEANING}
    return {kind: of_kind for kind, of_kind in by_kind.items() if of_kind}


def notes(every: Collection[Compared], info: RunInfo) -> list[str]:
    """What the numbers stand for: the machine, how many cells shared GPUs, how many were never measured before."""
    new = sum(each.result.expected.basis != Basis.MEASURED for each in every)
    shared = sum(_shared(each.result) for each in every)
    lines = [f"Run on {info.machine}."] if info.machine.gpus else []
    lines += [f"{new:,} of {count(len(every), 'cell')} had never been measured on a GPU with these versions."]
    if shared:
        lines += [
            f"{count(shared, 'cell')} ran with several ranks on one GPU, over gloo and not NCCL: there are fewer GPUs "
            "than ranks."
        ]
    return lines + [line for precision in TOLERANCE if (line := _numbers(every, precision))]


def _numbers(every: Iterable[Compared], precision: str) -> str:
    """How near cells that train come to what would count as wrong: what the limits rest on was measured on a CPU."""
    of_precision = [each.result for each in every if each.result.cell.precision == precision]
    trained = [r for r in of_precision if r.outcome == Outcome.TRAINS and r.relative_error is not None]
    if not trained:
        return ""
    largest = max(float(result.relative_error or 0) for result in trained)
    noise = max(float(result.rounding.times_noise or 0) for result in trained)
    return (
        f"{precision}: the largest error of {count(len(trained), 'cell')} that trained is {largest:.1e} (tolerance "
        f"{TOLERANCE[precision]:g}), and rounding excuses up to {noise:.1f} times the noise "
        f"(margin {MARGIN[precision]:g})."
    )


def _shared(result: Result) -> bool:
    share = result.evidence.get("ranks_per_device", 1)
    return isinstance(share, int) and share > 1


def show(console: Console, every: Collection[Compared], info: RunInfo, missing: Collection[str] = ()) -> None:
    """The table by failures, what it stands for, and each cell that differs, with the command that repeats it."""
    numbers = rows(every, missing)
    write_line(console, "On GPUs, beside the CPU", "bold")
    table = terminal.columns("failure", *GpuKind)
    for name, of_failure in numbers.items():
        table.add_row(one_line(name), *(f"{number:,}" if number else "" for number in of_failure))
    totals = [sum(column) for column in zip(*numbers.values(), strict=True)]
    if len(numbers) > 1:
        table.add_row("all", *(f"{number:,}" if number else "" for number in totals), style="bold")
    console.print(table, width=console.width if console.is_terminal else max(console.width, 100))
    write_line(console, LEGEND, "dim")
    for line in notes(every, info):
        write_line(console, line)
    width = max(console.width if console.is_terminal else 160, 40) - 2
    for kind, of_kind in differing(every).items():
        write_line(console)
        write_line(console, f"{count(len(of_kind), 'cell')} {MEANING[kind]}:", "bold")
        for each in of_kind[: terminal.LISTED]:
            _cell(console, each, info, width)
        if len(of_kind) > terminal.LISTED:
            write_line(console, f"and {len(of_kind) - terminal.LISTED} more: report.html lists them all")


def _cell(console: Console, each: Compared, info: RunInfo, width: int) -> None:
    wrong = each.kind != GpuKind.KNOWN
    line = Text(f"{one_line(each.result.cell.id)}  ").append(one_line(each.change), "bold red" if wrong else "yellow")
    write_line(console, line)
    should = outcome_text(each.result.expected.outcome, *each.result.expected.signatures)
    basis = f"expected there: {should}, {BASES[each.result.expected.basis]}" if each.kind == GpuKind.AGAINST else ""
    basis = BASES[Basis.REPORT] if each.kind == GpuKind.KNOWN and each.result.expected.basis == Basis.REPORT else basis
    if detail := cut(": ".join(filter(None, (basis, each.result.detail))), width):
        write_line(console, f"  {detail}")
    if again := words.command(each.result.cell.id, info.asked):
        write_line(console, f"  {here(again)}", "dim")


def page(every: Collection[Compared], info: RunInfo, missing: Collection[str] = ()) -> dict[str, object]:
    """What a run's page shows of it."""
    return {
        "kinds": [*GpuKind],
        "rows": [{"name": name, "numbers": numbers} for name, numbers in rows(every, missing).items()],
        "notes": [LEGEND, *notes(every, info)],
        "differing": [
            {"means": MEANING[kind], "cells": [{"id": each.result.cell.id, "change": each.change} for each in of_kind]}
            for kind, of_kind in differing(every).items()
        ],
    }


def count_measured(cells: Collection[Cell], versions: Mapping[str, str]) -> str:
    """How many of these cells were measured on a GPU; nothing for cells on the CPU."""
    of_gpus = [cell for cell in cells if cell.device != "cpu"]
    ran = sum(bool(on_gpus.runs_of(cell, versions)) for cell in of_gpus)
    return (
        f"{ran:,} of them were measured on a GPU; `faultline show` has what is expected of the rest." if of_gpus else ""
    )


def summary(failure: Failure, cells: Sequence[Cell], versions: Mapping[str, str]) -> list[str]:
    """What is known of a failure's cells on GPUs, in sentences: how many were measured, and on which kinds."""
    rules = expected.rules(failure)
    lines = _measured_lines(failure, cells, versions)
    bases: dict[Basis, list[Cell]] = {}
    for cell in cells:
        bases.setdefault(expected.expect(rules, cell, versions).basis, []).append(cell)
    dids: dict[str, list[Cell]] = {}
    for cell in bases.get(Basis.REPORT, ()):
        should = expected.expect(rules, cell, versions)
        dids.setdefault(outcome_text(should.outcome, *should.signatures), []).append(cell)
    lines += [f"As reported, not measured: {did} under {words.in_words(of, cells)}." for did, of in dids.items()]
    if Basis.CPU in bases:
        what = "All others" if len(bases) > 1 else "No cell was measured on a GPU with this stack. All"
        lines.append(f"{what} are expected to do there what they do on the CPU.")
    for stack in on_gpus.stacks():
        if stack_name(stack) != stack_name(versions):
            lines += _measured_lines(failure, cells, stack, f"With {measured.named_as(stack) or stack_name(stack)}, ")
    return lines


def _measured_lines(
    failure: Failure, cells: Sequence[Cell], versions: Mapping[str, str], beginning: str = ""
) -> list[str]:
    """How many of these cells were measured with some versions, on which GPUs, and which differ from the CPU."""
    by_cell = {cell: on_gpus.runs_of(cell, versions) for cell in cells}
    ran = {cell: runs for cell, runs in by_cell.items() if runs}
    if not ran:
        return []
    models = sorted({machine.gpu for runs in ran.values() for machine, _ in runs})
    line = f"{beginning}{len(ran):,} of {len(cells):,} cells were measured on a GPU: {listing(models)}"
    shared = sum(any(row.backend == "gloo" for _, row in runs) for runs in ran.values())
    lines = [f"{line}, which ranks shared in {shared:,}." if shared else f"{line}."]
    others = [cell for cell in ran if _differs(failure, cell, versions)]
    reasons = on_gpus.reasons() if others else ()
    whys = {cell: next((r.why for r in reasons for _, row in ran[cell] if r.explains(row)), "") for cell in others}
    for why in dict.fromkeys(whys.values()):
        where = words.in_words([cell for cell in others if whys[cell] == why], cells)
        lines.append(f"Otherwise than on the CPU: {where}{why and '; '}{why}.")
    return lines


def _differs(failure: Failure, cell: Cell, versions: Mapping[str, str]) -> bool:
    on_cpu = expected.ruled_on_cpu(failure, cell, versions)
    dids: set[Did] = {row.did for _, row in on_gpus.runs_of(cell, versions)}
    return any(expected.verdict(on_cpu, *did) != "expected" for did in dids)
