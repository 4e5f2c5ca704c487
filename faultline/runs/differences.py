"""What the comparisons of all ranks show together: a factor, weights that never move, and where they first differ."""

import math
from collections.abc import Sequence

from faultline.base.text import percent
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import TOLERANCE, Cell
from faultline.cells.finding import Difference, Factor, Finding, first_names
from faultline.ranks.report import KINDS, Report

NAMES = 10  # of unmoved parameters that are remembered
CLOSE = 0.01  # how far a factor may be from the number that it is taken for


def finding(cell: Cell, reports: Sequence[Report], order: Sequence[str] = ()) -> Finding:
    """What is wrong with the numbers of a cell; `order` are the modules in the order of their calls, if it is known."""
    unmoved = sorted({name for report in reports for name in never_moved(report)})
    drawn = [name for report in reports for name in report.drawn]
    apart = tuple(dict.fromkeys([*buffers_apart(reports), *drawn]))[:NAMES]
    return Finding(factor(cell, reports), tuple(unmoved[:NAMES]), len(unmoved), first(reports, order), apart)


def buffers_apart(reports: Sequence[Report]) -> dict[str, int]:
    """The buffers of which ranks hold different values as a step's forward pass begins, with the first such step."""
    since: dict[str, int] = {}
    for number, entered in enumerate(zip(*(report.entered for report in reports), strict=False), 1):
        for name in dict.fromkeys(name for rank in entered for name in rank):
            if len({rank.get(name) for rank in entered}) > 1:
                since.setdefault(name, number)
    return since


def never_moved(report: Report) -> set[str]:
    """The weights that a rank sees at their start after all steps, and in no step anywhere else where it is wrong."""
    moved = {
        name.partition(":")[2]
        for step in report.steps
        for name in (*step.bad, *step.nan)
        if name.startswith("weights:") and name.partition(":")[2] not in step.unmoved
    }
    return {name for step in report.steps[-1:] for name in step.unmoved} - moved


def factor(cell: Cell, reports: Sequence[Report], partial: bool = False) -> Factor | None:
    """The factor that all ranks have in common in their first step, of their gradients where those were read; if
    `partial`, of those alone that are wrong."""
    for kind in KINDS:
        first_steps = [report.steps[0] for report in reports if report.steps]
        factors = [(step.partial if partial else step.factors).get(kind) for step in first_steps]
        known = [each for each in factors if each]
        tolerance = max(CLOSE, TOLERANCE[cell.precision])
        if known and len(known) == len(factors) and all(math.isclose(x, known[0], rel_tol=tolerance) for x in known):
            counts = {"world size": cell.world_size, "accumulation steps": _micro_batches(reports)}
            numbers = {"1 / ": -1, "": 1}
            means = [
                f"{over}{name}"
                for name, count in counts.items()
                for over, power in numbers.items()
                if count > 1 and math.isclose(known[0], count**power, rel_tol=tolerance)
            ]
            return Factor(kind, known[0], tuple(means))
    return None


def _micro_batches(reports: Sequence[Report]) -> int:
    return max((int(report.evidence.get("micro_batches", 1)) for report in reports), default=1)


def first(reports: Sequence[Report], order: Sequence[str] = ()) -> Difference | None:
    """Where the ranks first differ from the reference; None if nowhere.

    In time: weights and buffers before the first step, outputs of modules in a step's forward pass, then gradients from
    the last module to the first, then what the optimizer made of them. Without an `order` of modules, it is that of
    their parameters.
    """
    places: list[tuple[tuple[int, int, int], Difference]] = []
    for report in reports:
        for parameter, error in report.begun.items():
            difference = Difference(0, report.rank, "start", parameter.rpartition(".")[0], error, parameter)
            places.append(((-1, 0, 0), difference))
        for number, step in enumerate(report.steps, report.before):
            parameters = (name.rpartition(".")[0] for name in step.weights or step.gradients or ())
            at = {name: index for index, name in enumerate(order or dict.fromkeys(parameters))}
            for name, error in step.outputs.items():
                module = name.partition(" ")[2].rpartition("#")[0]
                difference = Difference(number + 1, report.rank, "forward", module, error)
                places.append(((number, 0, at.get(module, -1)), difference))
            for name, error in step.buffers.items():
                module = name.rpartition(".")[0]
                difference = Difference(number + 1, report.rank, "buffers", module, error, name)
                places.append(((number, 0, at.get(module, -1)), difference))
            for name in (*step.bad, *step.nan):
                kind, _, parameter = name.partition(":")
                module = parameter.rpartition(".")[0]
                after = "update" if step.gradients is not None else "step"
                phase, moment = ("backward", 1) if kind == "gradients" else (after, 2)
                off = step.errors(kind).get(parameter)
                difference = Difference(number + 1, report.rank, phase, module, off, parameter)
                places.append(((number, moment, -at.get(module, -1)), difference))
    return min(places, key=lambda place: place[0])[1] if places else None


def of_buffers(reports: Sequence[Report]) -> tuple[float, Signature, str] | None:
    """What is wrong with the buffers, as a signature and in words, and the step since which it may be a cause."""
    if apart := buffers_apart(reports):
        words = f"buffers differ between ranks: {first_names((*apart,))}; a checkpoint keeps rank 0's"
        return min(apart.values()), Signature.BUFFERS_APART, words
    off = [
        (number, name, error, report.rank)
        for report in reports
        for number, step in report.numbered()
        for name, error in step.buffers.items()
    ]
    if not off:
        return None
    number, name, error, rank = off[0]
    words = f"buffer {name} differs by {percent(error)} (step {number}, rank {rank})"
    more = len({each[1] for each in off}) - 1
    # What a step leaves in a buffer can only be the cause of what goes wrong after it.
    return number + 0.5, Signature.BUFFERS_DIFFER, words + (f", and {more} more" if more else "")


def of_batches(reports: Sequence[Report]) -> list[str]:
    """What normalises by the statistics of a rank's rows, which one process doesn't."""
    names = reports[0].evidence.get("batch_statistics", ()) if len(reports) > 1 else ()
    return [f"{first_names(names)}: statistics of each rank's rows, not of the whole batch"] if names else []
