"""One cell of a check: a model under a strategy, held against one process, and what that shows."""

import math
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from faultline.base import traces
from faultline.base.errors import LACKS, MACHINE, OTHER, TargetFailed
from faultline.base.paths import is_ours
from faultline.base.text import cut, one_line
from faultline.catalogue import Failure, Variant
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells import expected as cells_expected
from faultline.cells.cell import TOLERANCE, Cell, reference
from faultline.cells.expected import Expectation
from faultline.cells.finding import described
from faultline.check.target import CheckTarget
from faultline.ranks.facts import Facts, not_in_all
from faultline.ranks.job import Job
from faultline.ranks.report import ErrorReport, Frame, Raised, Report
from faultline.runs import nodes, oracle, rank_reports, results, runner
from faultline.runs.nodes import Ended
from faultline.runs.results import Checked, Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer

NAME = "check"  # where a cell's id has its failure
CHECKED = Failure("", "", "", {}, (Variant("model"),), {}, name=NAME)
WITHIN = 0.1  # how far from the world size a factor may be that is taken for it
# What torch says of a batch norm that is given one row, and of one that the CPU doesn't have.
ONE_ROW = "Expected more than 1 value per channel when training"
ON_GPUS = "SyncBatchNorm layers only work with GPU modules", "SyncBatchNorm expected input tensor to be on"
NO_GROUP = "Default process group has not been initialized"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
LONGEST_CAUSE = 300  # characters of the error at the root of another
MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"


def run(target: CheckTarget, server: RankServer, references: References, cell: Cell, inject: str = "") -> Result:
    """One cell's result, held against one reference, with what only a check adds.

    `inject` names a change to make to the run (see `run.injection`), never to its reference. Raises TargetFailed where
    one process can't train the target.
    """
    model, facts = target.for_ranks(cell), Facts()

    def go() -> tuple[Ended, oracle.Judgement]:
        nonlocal facts
        made = references.file(server, cell, model)
        if made.problem:
            raise TargetFailed(*explained(made.problem, target.file.parent))
        facts = made.facts
        if math.isnan(facts.noise):
            raise TargetFailed(
                "the gradients are not finite in a single process already, so there is nothing to compare"
            )
        # So much between two runs in one process would be taken for rounding, and hide faults of that size.
        if facts.noise > TOLERANCE[cell.precision]:
            raise TargetFailed(
                f"two runs in a single process, of weights that differ by rounding, differ by {facts.noise:.2g} of"
                " their gradients, so nothing can be compared: switch off random numbers that the model draws,"
                " or what makes rounding grow (a BatchNorm over few values?)"
            )
        job = Job(cell, cell.world_size, reference=str(made.file), target=model, inject=inject)

        def judge(cell: Cell, ended: Ended, half: int = 0) -> oracle.Judgement:
            # A model that checkpoints by itself does so where nothing was asked for, in one process too.
            as_is = replace(cell, checkpointing=facts.checkpointing) if cell.checkpointing == "off" else cell
            return oracle.judge(as_is, CHECKED, ended, order=facts.order, half=half, asked=cell.checkpointing)

        resizes = cell.life == "resized" and not target.trainer
        if resizes and (refused := not_resizable(target, server, cell, job, judge)):
            return Ended([]), refused
        if cell.life != "straight":
            return runner.in_two_halves(server, job, judge)
        ended = nodes.run(server, job)
        return ended, on_this_device(cell, judge(cell, ended))

    ended, judged = runner.surviving(server, go)
    if judged.outcome == Outcome.DIVERGES and (part := rank_reports.factor(cell, _reports(ended), partial=True)):
        words = described(part, "of those that are off")
        judged = replace(judged, detail=f"{words}; {judged.detail}")
    expected = Expectation(Outcome.TRAINS)
    verdict = cells_expected.verdict(expected, judged.outcome, judged.signature)
    if judged.outcome == Outcome.IMPOSSIBLE:
        verdict = "expected"
    entry = results.result(cell, judged, ended, server.versions, expected, verdict)
    # What a rank that raised had computed until then differs for no other reason.
    raises = judged.outcome == Outcome.RAISES
    checked = Checked(
        raised_in=raised_in(ended, judged) if raises else None,
        at=raised_at(ended, judged, target.file.parent) if raises else waits_at(ended, target.file.parent),
        apart=untied_weights(ended),
        by_rank=by_rank(ended),
        collectives=collectives(ended),
        shows=tuple(shows(ended)),
        causes=judged.causes,
        facts=facts,
        sketch=next((report.sketch for report in _reports(ended)), None),
    )
    return replace(entry, checked=checked)


def on_this_device(cell: Cell, judged: oracle.Judgement) -> oracle.Judgement:
    """A judgement, or that the cell can't be run here: what only GPUs have says nothing of a strategy."""
    if cell.device == "cpu" and judged.outcome == Outcome.RAISES and any(words in judged.detail for words in ON_GPUS):
        needs = "`SyncBatchNorm` runs on GPUs only: it takes `--device cuda`, on a machine that has them"
        return oracle.Judgement(Outcome.IMPOSSIBLE, "", needs)  # without the error: each engine has one of its own
    return judged


def not_resizable(
    target: CheckTarget, server: RankServer, cell: Cell, job: Job, judge: Callable[[Cell, Ended], oracle.Judgement]
) -> oracle.Judgement | None:
    """The judgement on a resized life whose halves can't be held against one process; None if they can.

    The mean of the losses of more ranks has to be that of fewer. It isn't where a loss depends on which rows are
    together, as with uneven tokens or a BatchNorm, or where a batch's function gives other rows.
    """
    alone = reference(cell)
    shares = target.for_ranks(replace(cell, world_size=cell.saved_by))
    shared = replace(job, cell=alone, world_size=1, target=shares, inject="")
    judged = judge(alone, nodes.run(server, shared))
    if judged.outcome == Outcome.TRAINS:
        return None
    if judged.outcome not in (Outcome.DIVERGES, Outcome.RAISES):  # it says nothing of the model
        signature = Signature.REFERENCE_DIED if judged.outcome == Outcome.CRASHES else Signature.NO_REFERENCE
        detail = f"one process, in place of {cell.saved_by} ranks, {judged.outcome}: {judged.detail}"
        return oracle.Judgement(Outcome.INVALID, signature, detail)
    why = (
        f"the mean loss of {cell.saved_by} ranks is not that of {cell.world_size}, so a resized life can't be held"
        " against one process: look for uneven tokens, a BatchNorm, or a batch function that gives other rows:"
        f" {judged.detail}"
    )
    return oracle.Judgement(Outcome.IMPOSSIBLE, "", why)


def without_reference(cell: Cell, failed: TargetFailed, outcome: Outcome, server: RankServer) -> Result:
    """The result, with an outcome, of a cell whose target one process can't train."""
    problem = oracle.Judgement(outcome, Signature.NO_REFERENCE, one_line(f"{failed} {failed.traceback}"))
    expected = Expectation(Outcome.TRAINS)
    return results.result(cell, problem, Ended([]), server.versions, expected, "expected")


def _reports(ended: Ended) -> list[Report]:
    return [end.report for end in ended.ranks if end.report]


def raised_in(ended: Ended, judged: oracle.Judgement) -> str | None:
    """The innermost module that was in its forward pass at a cell's error: empty for the model itself, else None."""
    report = ended.ranks[judged.rank or 0].report
    return report.facts.inside if report and report.facts else None


def raised_at(ended: Ended, judged: oracle.Judgement, folder: Path) -> tuple[str, ...]:
    """The lines of the target's own files that a cell's error came through, the outermost first."""
    report = ended.ranks[judged.rank or 0].report
    chain = report.error.chain if report and report.error else ()
    return tuple(
        f"{Path(frame.file).relative_to(folder)}:{frame.line} in {frame.name}"
        + (f": {frame.source}" if frame.source else "")
        for raised in chain
        for frame in raised.frames
        if _is_in(folder, frame) and not _is_ours(frame)
    )


def waits_at(ended: Ended, folder: Path) -> tuple[str, ...]:
    """The line of the target's own files in which each rank of a hang waits."""
    places = []
    for index, end in enumerate(ended.ranks if ended.hang else ()):
        for file, line, name in traces.waiting(end.stack):
            if _is_in(folder, frame := Frame(file, int(line), name)) and not _is_ours(frame):
                places.append(f"{ended.who(index)}: {Path(file).relative_to(folder)}:{line} in {name}")
                break
    return tuple(places)


def shows(ended: Ended) -> list[str]:
    """Which of known.COMPARED the ranks of a cell show beside the reference."""
    names = []
    reports, world = _reports(ended), len(ended.ranks)
    factors = [report.steps[0].factors.get("weights") for report in reports if report.steps]
    if world > 1 and len(factors) == world and all(f and abs(f * world - 1) < WITHIN for f in factors):
        names.append("over_ranks")
    wrapped = [(report.evidence.get("wrapper", ""), report.facts.entered) for report in reports if report.facts]
    if any(entered and wrapper not in entered for wrapper, entered in wrapped):
        names.append("bypassed")
    return names


def untied_weights(ended: Ended) -> tuple[tuple[str, ...], ...]:
    """Tied weights that some rank has in several tensors after training."""
    every = [names for report in _reports(ended) if report.facts for names in report.facts.apart]
    return tuple(dict.fromkeys(every))


def by_rank(ended: Ended) -> tuple[str, ...]:
    """The modules that ran on some ranks only; none where a rank has not trained a whole step."""
    reports = _reports(ended)
    ran = [{*report.facts.order} for report in reports if report.facts and report.steps]
    return tuple(sorted(not_in_all(ran))) if len(ran) == len(ended.ranks) else ()


def collectives(ended: Ended) -> tuple[str, ...]:
    """The collectives that the model calls by itself on any rank, with their places."""
    called = (name for report in _reports(ended) if report.facts for name in report.facts.collectives)
    return tuple(dict.fromkeys(called))


def explained(problem: ErrorReport, folder: Path) -> tuple[str, str]:
    """A message and the target's own traceback, from the error of a reference that could not be made."""
    trace, root = _traceback(problem, folder), _root(problem)
    intended = next((raised for raised in problem.chain if raised.kind != OTHER), None)
    if problem.kind == MACHINE:
        return traces.fault_of_machine(f"{problem.type}: {problem.message}"), trace
    if problem.fault:
        return one_line(traces.fault_of_own(problem.fault, f"{problem.type}: {problem.message}")), trace
    if NO_GROUP in problem.message:
        guard = "guard its collectives with `torch.distributed.is_initialized()`"
        return f"the model has to train in a single process, too, and it calls a collective there: {guard}", trace
    if not intended:  # an error's message may have several lines, of which the first says what it is
        lines = problem.chain[-1].text.splitlines() if problem.chain else [problem.message]
        message = one_line(next(line for line in lines if line[:1].strip()))
        hint = ": each rank has one row of the batch, so give more rows, or fewer ranks (--world)"
        return message + (hint if ONE_ROW in message else "") + root, trace
    message = one_line(intended.message)
    other = "--stack makes an environment that has it, and --python uses one"
    if trace and message.startswith(f"{LACKS}No module named"):
        missing = message.removeprefix(LACKS)
        message = f"{missing}: if it is your own file, put its folder on PYTHONPATH; if it is a package, {other}"
    elif message.startswith(LACKS):
        message += f"{root}; {other}"
    return message, trace


def _root(problem: ErrorReport) -> str:
    """The cause at the root of an error, where its own words don't have it: a package that is broken says no more."""
    chain = [raised for raised in problem.chain if raised.text.strip()]
    if len(chain) < 2 or not all(raised.follows or raised.kind != OTHER for raised in chain[1:]):
        return ""
    first = chain[0]
    text = one_line(first.text)
    return "" if one_line(first.message) in one_line(problem.message) else f", because of {cut(text, LONGEST_CAUSE)}"


def _traceback(problem: ErrorReport, folder: Path) -> str:
    """A traceback without this suite's frames, and without causes that have none of a folder; empty if none has."""
    text = ""
    for raised in problem.chain:
        faulty = bool(problem.fault) and raised is problem.chain[-1]
        part = _printed(raised, folder, to_folder=faulty or raised.kind != OTHER)
        if part and text:
            text += CAUSE if raised.follows else MEANWHILE
        text += part
    return text


def _printed(raised: Raised, folder: Path, to_folder: bool) -> str:
    """A traceback as Python prints it, without this suite's frames; if asked, only up to the last frame of a folder."""
    frames = [frame for frame in raised.frames if not _is_ours(frame)]
    inside = [number for number, frame in enumerate(frames) if _is_in(folder, frame)]
    if not inside and f'File "{folder}' not in raised.text:
        return ""
    if to_folder:
        frames = frames[: inside[-1] + 1]
    summary = traceback.StackSummary.from_list([(each.file, each.line, each.name, each.source) for each in frames])
    return "".join(["Traceback (most recent call last):\n", *summary.format(), "" if to_folder else raised.text])


def _is_ours(frame: Frame) -> bool:
    """Of this suite, or of torch where it calls a module: three frames for each call, which say nothing."""
    return is_ours(frame.file) or frame.file.startswith("<") or frame.file.endswith("/torch/nn/modules/module.py")


def _is_in(folder: Path, frame: Frame) -> bool:
    path = Path(frame.file)
    return folder in path.parents and "site-packages" not in path.parts
