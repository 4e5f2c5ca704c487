"""The oracle's judgement: from what each rank reported to the one outcome of a cell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from faultline import strategies
from faultline.catalogue import Failure
from faultline.matrix import STEPS, Cell
from faultline.ranks import Ended, is_victim


class Outcome(StrEnum):
    """What a cell did.

    trains       every step ran on every rank and agrees with the reference
    raises       an exception; `signature` names it, or is ``other``
    diverges     no error, but gradients or weights are not the reference's
    misplaced    a model that should be sharded or moved is not
    hangs        ranks are alive and make no progress
    crashes      a rank died of a signal or left without a word
    impossible   the cell can't exist here, with the reason
    invalid      no evidence that what its name says really ran; never a pass
    """

    TRAINS = "trains"
    RAISES = "raises"
    DIVERGES = "diverges"
    MISPLACED = "misplaced"
    HANGS = "hangs"
    CRASHES = "crashes"
    IMPOSSIBLE = "impossible"
    INVALID = "invalid"


@dataclass(frozen=True)
class Judgement:
    outcome: Outcome
    signature: str = ""
    detail: str = ""
    rank: int | None = None
    worst_parameter: str = ""
    relative_error: float | None = None


def judge(cell: Cell, failure: Failure, ended: Ended) -> Judgement:
    """Name the outcome: a death or an error, whichever came first, then evidence, placement, numbers."""
    if ended.hang:
        waits = [f"rank {i}: {place}" for i, end in enumerate(ended.ranks) if (place := innermost(end.stack))]
        return Judgement(Outcome.HANGS, "no-progress", "; ".join([ended.hang, *waits]))
    reports = [end.report for end in ended.ranks if end.report]
    error = first_cause(reports)
    died = min(((end.at, i, end.exit) for i, end in enumerate(ended.ranks) if end.exit is not None), default=None)
    if died and not (error and not is_victim(error[1]) and error[1]["at"] < died[0]):
        _, rank, code = died
        how = f"killed by signal {-code}" if code < 0 else f"left with exit code {code} and no report"
        return Judgement(Outcome.CRASHES, "signal" if code < 0 else "silent-exit", f"rank {rank} was {how}", rank)
    if error:
        return _judge_error(cell, failure, *error, reports)
    doubts = evidence_doubts(cell, reports)
    if doubts:
        return Judgement(Outcome.INVALID, "evidence", "; ".join(doubts))
    misplaced = placement_faults(reports)
    numbers = _judge_numbers(reports)
    if misplaced:
        return Judgement(
            Outcome.MISPLACED,
            "reference-model",
            "; ".join(misplaced),
            worst_parameter=numbers.worst_parameter,
            relative_error=numbers.relative_error,
        )
    return numbers


def first_cause(reports: list[dict[str, Any]]) -> tuple[int, dict[str, Any]] | None:
    """The rank and error that came first; one that only says that a peer is gone comes after all others."""
    errors = [(report["rank"], report["error"]) for report in reports if report["error"]]
    return min(errors, key=lambda e: (is_victim(e[1]), e[1]["at"]), default=None)


def _judge_error(
    cell: Cell, failure: Failure, rank: int, error: dict[str, Any], reports: list[dict[str, Any]]
) -> Judgement:
    text = f"{error['type']}: {error['message']}"
    if not error["message"].strip():  # a bare assert: the line that failed says what it was
        text = f"{error['type']}: {last_line(error['traceback'])}"
    if error["type"] == "Impossible":
        return Judgement(Outcome.IMPOSSIBLE, "", error["message"], rank)
    signature = failure.signature(text)
    evidence = next(report["evidence"] for report in reports if report["rank"] == rank)
    if "wrapper" not in evidence and signature != "other":
        return Judgement(Outcome.INVALID, "evidence", f"rank {rank} failed before its strategy was in force: {text}")
    doubts = (
        strategies.family(cell.strategy).doubts(strategies.options(cell.strategy), evidence)
        if ("wrapper" in evidence)
        else []
    )
    if doubts:
        return Judgement(Outcome.INVALID, "evidence", "; ".join([*doubts, text]), rank)
    return Judgement(Outcome.RAISES, signature, text, rank)


def evidence_doubts(cell: Cell, reports: list[dict[str, Any]]) -> list[str]:
    """What the ranks could not prove of their cell's strategy, checkpointing, steps, processes and data."""
    doubts = []
    if len(reports) != cell.world_size:
        doubts.append(f"{len(reports)} of {cell.world_size} ranks reported")
    family, options = strategies.family(cell.strategy), strategies.options(cell.strategy)
    for report in reports:
        found, who = report["evidence"], f"rank {report['rank']}: "
        if "wrapper" not in found:
            doubts.append(who + "no evidence of the strategy")
            continue
        doubts += [who + doubt for doubt in family.doubts(options, found)]
        if found["world_size"] != cell.world_size:
            doubts.append(who + f"world size {found['world_size']}")
        if found["checkpointing_seen"] != cell.checkpointing:
            doubts.append(who + f"checkpointing was {found['checkpointing_seen']}, not {cell.checkpointing}")
        if len(report["steps"]) != STEPS:
            doubts.append(who + f"{len(report['steps'])} of {STEPS} steps")
        if found["at_fork"]["threads"] > 1:
            doubts.append(who + f"the rank server had {found['at_fork']['threads']} threads when it forked")
        if found["at_fork"]["cuda_initialised"]:
            doubts.append(who + "CUDA was initialised before the fork")
    losses = {tuple(report["losses"]) for report in reports}
    if cell.world_size > 1 and len(losses) == 1 and losses != {()}:
        doubts.append("every rank saw the same losses: they trained on the same rows")
    return doubts


def placement_faults(reports: list[dict[str, Any]]) -> list[str]:
    """A second model that is whole where the trained one is sharded, or that lives on another device."""
    faults = []
    for report in reports:
        found = report["evidence"]
        second = found.get("second")
        if not second:
            continue
        sharded = found["bytes_held"] < found["bytes_whole"]
        if sharded and second["bytes_held"] >= second["bytes_whole"]:
            faults.append(
                f"rank {report['rank']} holds all {second['bytes_whole']} bytes of the reference model"
                f" ({second['wrapper']}); of the policy it holds {found['bytes_held']} of {found['bytes_whole']}"
            )
        if any(device.split(":")[0] != found["device"].split(":")[0] for device in second["devices"]):
            faults.append(f"rank {report['rank']} keeps the reference model on {second['devices']}")
    return faults


def _judge_numbers(reports: list[dict[str, Any]]) -> Judgement:
    """Agreement with the reference and between ranks, over every parameter and step."""
    worst, error, bad, unmoved, nan = "", 0.0, 0, set(), []
    for report in reports:
        for number, step in enumerate(report["steps"]):
            nan += [f"{name} at step {number + 1} on rank {report['rank']}" for name in step["nan"]]
            bad += len(step["bad"])
            unmoved |= set(step["unmoved"])
            for kind in ("gradients", "weights"):
                for name, value in step.get(kind, {}).items():
                    if value > error:
                        worst, error = f"{name} ({kind}, step {number + 1}, rank {report['rank']})", value
    if nan:
        return Judgement(Outcome.DIVERGES, "nan", f"not a number: {nan[0]}", None, nan[0])
    digests = {tuple(report["digests"]) for report in reports}
    if bad:
        signature = "unmoved" if unmoved else "differs"
        detail = f"{worst} is off by {error:.2g}"
        if unmoved:
            detail += f"; never moved: {', '.join(sorted(unmoved)[:3])}" + (
                f" and {len(unmoved) - 3} more" if len(unmoved) > 3 else ""
            )
        return Judgement(Outcome.DIVERGES, signature, detail, None, worst, error)
    if len(digests) > 1:
        return Judgement(Outcome.DIVERGES, "ranks-differ", "ranks hold different weights", None, worst, error)
    return Judgement(Outcome.TRAINS, "", "", None, worst, error)


def last_line(traceback: str) -> str:
    """The source line that raised, from a printed traceback."""
    lines = [
        line.strip() for line in traceback.splitlines() if line.startswith("    ") and set(line.strip()) - set("^~")
    ]
    return lines[-1] if lines else ""


def innermost(stack: str) -> str:
    """The first lines of a faulthandler dump's main thread: where a rank waits."""
    current = stack.split("Current thread", 1)[-1]
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', current)
    return " < ".join(f"{name} ({file.rsplit('/', 1)[-1]}:{line})" for file, line, name in frames[:3])
