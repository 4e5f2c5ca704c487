"""The oracle's judgement: from what each rank reported to the one outcome of a cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from faultline.base import traces
from faultline.base.axes import COMPILE
from faultline.base.errors import MACHINE, CheckFailed, Impossible
from faultline.base.text import percent
from faultline.base.traces import innermost, is_victim, last_words, signal_name
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.cells.finding import Finding, described, first_names
from faultline.ranks.report import Checkpoint, Deviation, ErrorReport, Report
from faultline.runs import rank_reports
from faultline.runs.nodes import Ended


class Cause(NamedTuple):
    """One way in which the numbers of a cell are wrong, in words."""

    signature: str
    detail: str


@dataclass(frozen=True)
class Judgement:
    outcome: Outcome
    signature: str = ""
    detail: str = ""
    rank: int | None = None
    worst_parameter: str = ""
    relative_error: float | None = None
    finding: Finding = field(default_factory=Finding)
    causes: tuple[Cause, ...] = ()  # where the numbers are wrong in several ways, the gravest first


def judge(
    cell: Cell,
    failure: Failure,
    ended: Ended,
    loaded: Ended | None = None,
    order: Sequence[str] = (),
    half: int = 0,
    asked: str = "",
) -> Judgement:
    """Name the outcome: a death or an error, whichever came first, placement, numbers and then the checkpoint that
    `loaded` has; none of it without evidence. `order` are the modules in the order of their calls, where it is known,
    and `half` which half of an interrupted life it is. Of a model that checkpoints by itself, the cell has the mode
    that one process showed, and `asked` is the mode that it was set to.
    """
    asked = asked or cell.checkpointing
    if elsewhere := ended.elsewhere():
        return Judgement(Outcome.INVALID, Signature.EVIDENCE, "; ".join(elsewhere))
    if ended.hang:
        waits = [f"{ended.who(i)}: {place}" for i, end in enumerate(ended.ranks) if (place := innermost(end.stack))]
        judged = Judgement(Outcome.HANGS, Signature.NO_PROGRESS, "; ".join([ended.hang, *waits]))
        return _proven(cell, ended, judged, asked)
    reports = [end.report for end in ended.ranks if end.report]
    error = first_cause(reports)
    died = min(((end.at, i, end.exit) for i, end in enumerate(ended.ranks) if end.exit is not None), default=None)
    if died and not (error and not is_victim(error[1].message) and error[1].at < died[0]):
        _, rank, code = died
        how = f"killed by {signal_name(-code)}" if code < 0 else f"left with exit code {code} and no report"
        detail = ": ".join(filter(None, (f"{ended.who(rank)} was {how}", last_words(ended.ranks[rank].log))))
        name = signal_name(-code) if code < 0 else Signature.SILENT_EXIT
        return _proven(cell, ended, Judgement(Outcome.CRASHES, name, detail, rank), asked)
    if error:
        return _judge_error(cell, failure, *error, ended, asked)
    doubts = rank_reports.unproven(cell, reports, half)
    if doubts:
        return Judgement(Outcome.INVALID, Signature.EVIDENCE, "; ".join(doubts))
    misplaced = rank_reports.placement_faults(reports)
    numbers = _judge_numbers(cell, reports, order)
    if misplaced:
        detail = "; ".join(misplaced)
        return replace(numbers, outcome=Outcome.MISPLACED, signature=Signature.REFERENCE_MODEL, detail=detail)
    if numbers.outcome is Outcome.TRAINS and any(report.evidence.get("saved") for report in reports):
        return _judge_checkpoint(loaded, numbers)
    return numbers


def _judge_checkpoint(loaded: Ended | None, numbers: Judgement) -> Judgement:
    """What a process of its own found in the checkpoint of a cell that trained."""
    report = loaded.ranks[0].report if loaded else None
    checkpoint = report.checkpoint if report and not report.error else None
    if not report or not checkpoint or report.evidence["process_group"] or not report.evidence["live"]:
        why = report.error.message if report and report.error else "no process was left to say why"
        return Judgement(Outcome.INVALID, Signature.EVIDENCE, f"the checkpoint could not be examined: {why}")
    signature, detail = _checkpoint_faults(checkpoint)
    return Judgement(Outcome.DIVERGES, signature, detail) if signature else numbers


def _checkpoint_faults(checkpoint: Checkpoint) -> tuple[str, str]:
    """The signature of what is wrong with a checkpoint and the words for it; both empty where nothing is."""
    kinds = {"missing": checkpoint.missing, "empty": checkpoint.empty, "of another shape": checkpoint.misshapen}
    faults = [
        f"{len(names)} of {checkpoint.names} tensors are {words} in the checkpoint: {first_names(names)}"
        for words, names in kinds.items()
        if names
    ]
    if checkpoint.error:
        faults.append(f"loading it raises {checkpoint.error}")
    if faults:
        return Signature.CHECKPOINT_LACKS, "; ".join(faults)
    if differs := checkpoint.differs:
        worst = max(differs, key=lambda name: differs[name])
        detail = f"{len(differs)} tensors of the checkpoint differ: {worst} by {percent(differs[worst])}"
        return Signature.CHECKPOINT_DIFFERS, detail
    if checkpoint.untied:
        names = first_names(checkpoint.untied[0])
        return Signature.CHECKPOINT_UNTIED, f"tied in the model and apart in the checkpoint: {names}"
    return "", ""


def first_cause(reports: Sequence[Report]) -> tuple[int, ErrorReport] | None:
    """The rank and error that came first; one that only says that a peer is gone comes after all others."""
    errors = [(report.rank, report.error) for report in reports if report.error]
    return min(errors, key=lambda e: (is_victim(e[1].message), e[1].at), default=None)


def _judge_error(cell: Cell, failure: Failure, rank: int, error: ErrorReport, ended: Ended, asked: str) -> Judgement:
    # Of a bare assert, the line that failed says what it was.
    text = f"{error.type}: {error.message if error.message.strip() else error.line}"
    if error.kind == Impossible.kind:
        return Judgement(Outcome.IMPOSSIBLE, "", error.message, rank)
    if error.kind == MACHINE:
        return Judgement(Outcome.INVALID, Signature.MACHINE, traces.fault_of_machine(text), rank)
    if error.fault and not is_victim(error.message):
        return Judgement(Outcome.INVALID, Signature.OWN_FAULT, traces.fault_of_own(error.fault, text), rank)
    signature = failure.signature(text)
    if error.kind == CheckFailed.kind:
        signature = Signature.CHECK
    elif signature == Signature.CHECK:  # somebody's own error, in the words of a check
        signature = Signature.OTHER
    detail = f"{ended.who(rank)}: {text}" if ended.ranks[rank].node else text
    return _proven(cell, ended, Judgement(Outcome.RAISES, signature, detail, rank), asked)


def _proven(cell: Cell, ended: Ended, judged: Judgement, asked: str) -> Judgement:
    """A bad end, or `invalid` where it may not have been that of the cell's strategy and mode.

    The rank at fault (in a hang, every rank) must have shown them; its peers,
    which it may have cut short, are held to what they did show. Of a trainer
    that could not be built it is enough that accelerate was set to train so.
    An error that nobody knows proves nothing, and may come before there is a strategy; one that
    the engine raises while it is given the model is the strategy's.
    """
    doubts = []
    for rank, end in enumerate(ended.ranks):
        shown, who = end.evidence, f"rank {rank}: "
        doubts += [who + doubt for doubt in rank_reports.contradictions(cell, shown)]
        if judged.rank not in (None, rank):
            continue
        ours = "wrapper" in shown or shown.get("wrapping") == cell.strategy  # its engine may refuse a model
        if not ours and not rank_reports.prepared(cell, shown) and judged.signature != Signature.OTHER:
            doubts.append(who + "its strategy was not in force yet")
        if cell.compile != COMPILE.default and not shown.get("compiled", {}).get("frames"):
            doubts.append(who + "nothing was compiled yet")
        # There may have been no time to see the mode at work; the model's modules say which they are set to.
        seen = shown.get("checkpointing_seen", "off")
        mode = shown.get("checkpointing_set", cell.checkpointing) if seen == "off" else seen
        # In its first step, a model that checkpoints by itself may have come to no backward pass.
        early = seen == "off" and not (end.report and end.report.steps)
        if mode != cell.checkpointing and not (early and mode == asked):
            doubts.append(who + f"checkpointing was {mode}, not {cell.checkpointing}")
    if doubts:
        return Judgement(Outcome.INVALID, Signature.EVIDENCE, "; ".join([*doubts, judged.detail]), judged.rank)
    return judged


def differing(row: Deviation) -> str:
    """How far what a parameter was compared by is from the reference, relative to the reference's norm, in words."""
    what = {"gradients": "gradient", "weights": "update"}[row.kind]
    off = "should be zero, and isn't" if math.isinf(float(row.error)) else f"differs by {percent(row.error)}"
    return f"{what} of {row.parameter} {off} (step {row.step}, rank {row.rank})"


def start(reports: Sequence[Report]) -> str:
    """Which weights and buffers training began with that are not the reference's, and whether each rank had built
    others."""
    off = {name: error for report in reports for name, error in report.begun.items()}
    worst = max(off, key=lambda name: off[name])
    built = {report.evidence.get("built", "") for report in reports}
    kinds = {"weights": any(report.started for report in reports), "buffers": any(report.drawn for report in reports)}
    what = " and ".join(kind for kind, any_off in kinds.items() if any_off)
    who = f"ranks start with different {what}" if len(built) > 1 else f"training starts with other {what}"
    return f"{who}: {worst} differs by {percent(off[worst])}" + (f", and {len(off) - 1} more" if len(off) > 1 else "")


def _judge_numbers(cell: Cell, reports: Sequence[Report], order: Sequence[str]) -> Judgement:
    """Agreement with the reference and between ranks, over every parameter and step."""
    rows = [row for report in reports for row, noise in report.deviations() if noise is None and float(row.error) > 0]
    largest = max(rows, key=lambda row: row.error, default=None)
    worst, error = "", 0.0
    if largest:
        worst = f"{largest.parameter} ({largest.kind}, step {largest.step}, rank {largest.rank})"
        error = float(largest.error)
    wrong = rank_reports.finding(cell, reports, order)
    buffers = rank_reports.of_buffers(reports)
    beside: tuple[Cause, ...] = (Cause(buffers[1], buffers[2]),) if buffers else ()
    for report in reports:
        for number, step in report.numbered():
            if step.nan:
                place = f"{step.nan[0]} at step {number} on rank {report.rank}"
                causes = (Cause(Signature.NAN, f"not a number: {place}"), *beside)
                return _wrong(causes, causes[0].signature, place, None, wrong)
    if any(report.begun for report in reports):
        return Judgement(Outcome.DIVERGES, Signature.START_DIFFERS, start(reports), None, worst, error, wrong)
    causes = beside
    if any(step.bad for report in reports for step in report.steps):
        parts = [described(wrong.factor)] if wrong.factor else []
        parts += [differing(largest)] if largest else []
        parts += [f"never moved: {wrong.names}"] if wrong.unmoved else []
        parts += rank_reports.of_batches(reports)
        causes = (Cause(Signature.UNMOVED if wrong.unmoved else Signature.DIFFERS, "; ".join(parts)), *beside)
    if causes:
        # What buffers hold is named first where it may be the reason for the rest.
        named = beside[0] if buffers and buffers[0] <= _first_bad(reports) else causes[0]
        return _wrong(causes, named.signature, worst, error, wrong)
    if len({report.digests for report in reports}) > 1:
        return Judgement(Outcome.DIVERGES, Signature.RANKS_DIFFER, "ranks hold different weights", None, worst, error)
    return Judgement(Outcome.TRAINS, "", "", None, worst, error)


def _wrong(causes: tuple[Cause, ...], signature: str, worst: str, error: float | None, finding: Finding) -> Judgement:
    """The judgement on numbers that are wrong in these ways, one of which has its signature."""
    detail, several = "; ".join(cause.detail for cause in causes), causes if len(causes) > 1 else ()
    return Judgement(Outcome.DIVERGES, signature, detail, None, worst, error, finding, several)


def _first_bad(reports: Sequence[Report]) -> float:
    """The first step in which a gradient or a weight is wrong; infinity without one."""
    bad = (number for report in reports for number, step in report.numbered() if step.bad)
    return min(bad, default=math.inf)
