"""From runs on GPUs to observations/gpus/: what each cell did, on which machine, and why that differs from the CPU."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from faultline.base.markdown import headed
from faultline.base.markdown import row as line
from faultline.base.packages import untagged
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, outcome_text
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.on_gpus import Machine, Measured, Reason, Row, everything, reasons
from faultline.cells.rules import possible_cells
from faultline.observations import measured
from faultline.runs import sendable, storage
from faultline.runs.results import Result

BACKENDS = ("nccl", "gloo", "none")
UNKNOWN = "nobody has said why"


def rows(machine: storage.Machine, results: Sequence[Result]) -> list[tuple[Machine, Row]]:
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
            ran.append((where, Row(result.cell.id, backend, result.outcome, result.signature)))
    return ran


def ran_on(machine: storage.Machine, result: Result) -> Machine | None:
    """The models of GPUs on which a cell's ranks ran, and what drove them; None where neither they nor the run say so.

    A cell that no rank was started for ran on none: it counts for the machine if that has GPUs of one model.
    """
    shown = [rank.evidence for rank in result.ranks]
    models = sorted({str(evidence["gpu"]) for evidence in shown if evidence.get("gpu")}) or sorted({*machine.gpus})
    if not models or (len(models) > 1 and not any(evidence.get("gpu") for evidence in shown)):
        return None
    driver, cuda, nccl = (sendable.reported(shown, name, getattr(machine, name)) for name in ("driver", "cuda", "nccl"))
    return Machine(" + ".join(models), driver, cuda, nccl, untagged(result.stack))


def merged(before: Iterable[Measured], ran: Iterable[tuple[Machine, Row]]) -> list[Measured]:
    """What was measured, with new rows: a cell has one for each machine, that of the newest run."""
    by_name = {each.machine.name: each for each in before}
    new: dict[str, dict[str, Row]] = {}
    for machine, row in ran:
        by_name.setdefault(machine.name, Measured(machine))
        new.setdefault(machine.name, {})[row.cell] = row
    return [replace(each, rows=_with(each.rows, new.get(name, {}))) for name, each in sorted(by_name.items())]


def _with(rows: Sequence[Row], new: Mapping[str, Row]) -> Sequence[Row]:
    known = {row.cell: row for row in rows if row.cell in ids(row.cell.partition("/")[0])}
    return sorted({**known, **new}.values())


@functools.cache
def ids(failure: str) -> frozenset[str]:
    """The ids of a failure's cells on GPUs, as the matrix has them by now."""
    known = failures().get(failure)
    return frozenset(cell.id for cell, _ in possible_cells(known, "cuda")) if known else frozenset()


def differing() -> dict[Reason, list[tuple[Row, str]]]:
    """Rows that aren't what the CPU does with the same versions, and that, by the reason: that of a rule for GPUs, one
    of reasons.toml, or `UNKNOWN`."""
    by_reason: dict[Reason, list[tuple[Row, str]]] = {}
    for each in everything():
        for row in each.rows:
            cell, stack = Cell.parse(row.cell), each.machine.stack
            rules = expected.rules(failures()[cell.failure])
            on_cpu = expected.ruled(rules, expected.on_cpu(cell), stack)
            rule = expected.first(rules, cell, stack) or expected.TRAINS
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
            line(cells, on_cpu, outcome_text(reason.outcome, reason.signature), "; ".join((reason.why, *more)))
        )
    same = ran - sum(map(len, by_reason.values()))
    sums = f"Of {ran:,} cells, {same:,} did what the CPU does with the same versions, and {ran - same} something else:"
    return "\n".join((sums, "", *headed(("cells", "on the CPU", "on the GPU", "why"), lines)))
