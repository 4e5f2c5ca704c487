"""What the reports of all ranks show together: what they leave unproven of their cell, and how their numbers differ."""

import math
from collections.abc import Sequence

from faultline import strategies
from faultline.base.axes import COMPILE
from faultline.base.text import percent
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import HALF, TOLERANCE, Cell
from faultline.cells.finding import Difference, Factor, Finding, first_names
from faultline.ranks.job import FIRST
from faultline.ranks.report import KINDS, Report
from faultline.strategies import Evidence

NAMES = 10  # of unmoved parameters that are remembered
CLOSE = 0.01  # how far a factor may be from the number that it is taken for


def prepared(cell: Cell, shown: Evidence) -> bool:
    """Whether a trainer that failed while it was built was about to train under the cell's strategy by then."""
    wanted = strategies.family(cell.strategy).prepared(strategies.options(cell.strategy))
    return wanted.items() <= shown.get("prepared", {}).items()


def contradictions(cell: Cell, shown: Evidence) -> list[str]:
    """What contradicts a rank's strategy and processes, as far as its evidence goes."""
    doubts = []
    if "wrapper" in shown:
        doubts += strategies.family(cell.strategy).doubts(strategies.options(cell.strategy), shown)
    if shown.get("world_size", cell.world_size) != cell.world_size:
        doubts.append(f"world size {shown['world_size']}")
    server = shown.get("at_fork", {})
    if server.get("threads", 1) > 1:
        names = f" ({', '.join(server['names'])})" if server.get("names") else ""
        doubts.append(f"the rank server had {server['threads']} threads when it forked{names}")
    if server.get("cuda_initialised"):
        doubts.append("CUDA was initialised before the fork")
    gpu, lent = shown.get("gpu_uuid", ""), shown.get("gpus_lent", ())
    if gpu and lent and gpu not in lent:
        doubts.append(f"it ran on {gpu}, and its GPUs are {' and '.join(lent)}")
    if cell.precision == "fp32" and shown.get("tf32"):
        doubts.append("TF32 was on, so fp32 was not fp32")
    return doubts


def unproven(cell: Cell, reports: Sequence[Report], half: int = 0) -> list[str]:
    """What the ranks could not prove of their cell's strategy, checkpointing, steps, processes and data."""
    doubts = []
    steps = HALF if half else cell.steps
    if len(reports) != cell.world_size:
        doubts.append(f"{len(reports)} of {cell.world_size} ranks reported")
    for report in reports:
        shown, who = report.evidence, f"rank {report.rank}: "
        if "wrapper" not in shown:
            doubts.append(who + "no evidence of the strategy")
            continue
        doubts += [who + doubt for doubt in contradictions(cell, shown)]
        if shown["checkpointing_seen"] != cell.checkpointing:
            doubts.append(who + f"checkpointing was {shown['checkpointing_seen']}, not {cell.checkpointing}")
        if cell.compile != COMPILE.default and not shown["compiled"]["graphs"]:
            doubts.append(who + "nothing was compiled")
        if len(report.steps) != steps:
            doubts.append(who + f"{len(report.steps)} of {steps} steps")
        if half and HALF not in (shown.get("saved_after"), shown.get("resumed_after")):
            doubts.append(who + ("nothing was saved" if half == FIRST else "it did not resume"))
        micro_batches = shown.get("micro_batches", 0)
        losses = steps * micro_batches - (micro_batches - shown.get("last_window", micro_batches))
        if micro_batches and len(report.losses) != losses:
            doubts.append(who + f"{len(report.losses)} losses of {losses} micro-batches in {steps} steps")
        wanted = ["gradients", "weights"] if shown.get("gradients_remain") else ["weights"]
        doubts += [who + f"no {kind} were compared" for kind in wanted if kind not in report.compared]
    # Where no tensors were seen, losses show the rows, if they are numbers; else one may be the mean over the ranks.
    rows = {report.rank: report.evidence.get("rows") or tuple(report.losses) for report in reports}
    if all(each and not any(part != part for part in each) for each in rows.values()):
        same, family = any(report.evidence.get("same_rows") for report in reports), strategies.family(cell.strategy)
        doubts += family.doubt_rows(cell.strategy, rows, cell.world_size, same=same)
    return doubts


def placement_faults(reports: Sequence[Report]) -> list[str]:
    """A second model that is whole where the trained one is sharded, or that neither computes nor is kept with it."""
    faults = []
    for report in reports:
        first, second = report.evidence, report.evidence.get("second")
        if not second:
            continue
        sharded = first["bytes_held"] < first["bytes_whole"]
        if sharded and second["bytes_held"] >= second["bytes_whole"]:
            faults.append(
                f"rank {report.rank} holds all {second['bytes_whole']} bytes of the second model"
                f" ({second['wrapper']}); of the trained one it holds {first['bytes_held']} of {first['bytes_whole']}"
            )
        homes = {first["device"].split(":")[0]} | ({"cpu"} if first.get("offload_param") else set())
        if any(device.split(":")[0] not in homes for device in second["devices"]):
            faults.append(f"rank {report.rank} keeps the second model on {second['devices']}")
    return faults


def finding(cell: Cell, reports: Sequence[Report], order: Sequence[str] = ()) -> Finding:
    """What is wrong with the numbers of a cell; `order` are the modules in the order of their calls, if it is known."""
    unmoved = sorted({name for report in reports for name in never_moved(report)})
    drawn = [name for report in reports for name in report.drawn]
    apart = tuple(dict.fromkeys([*buffers_apart(reports), *drawn]))[:NAMES]
    differ = len({report.digests for report in reports}) > 1
    return Finding(factor(cell, reports), tuple(unmoved[:NAMES]), len(unmoved), first(reports, order), apart, differ)


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
