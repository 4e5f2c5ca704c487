"""What the evidence of ranks contradicts or leaves unproven of their cell."""

from collections.abc import Sequence

from faultline import strategies
from faultline.cells.cell import HALF, Cell
from faultline.ranks.job import FIRST
from faultline.ranks.report import Report
from faultline.strategies import Evidence


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
        if len(report.steps) != steps:
            doubts.append(who + f"{len(report.steps)} of {steps} steps")
        if half and HALF not in (shown.get("saved_after"), shown.get("resumed_after")):
            doubts.append(who + ("nothing was saved" if half == FIRST else "it did not resume"))
        micro_batches = shown.get("micro_batches", 0)
        if micro_batches and len(report.losses) != steps * micro_batches:
            doubts.append(who + f"{len(report.losses)} losses of {steps} steps of {micro_batches} micro-batches")
        wanted = ["gradients", "weights"] if shown.get("gradients_remain") else ["weights"]
        doubts += [who + f"no {kind} were compared" for kind in wanted if kind not in report.compared]
    # Where no tensors were seen, losses show the rows, if they are numbers; else one may be the mean over the ranks.
    rows = {report.rank: report.evidence.get("rows") or tuple(report.losses) for report in reports}
    if all(each and not any(part != part for part in each) for each in rows.values()):
        doubts += strategies.family(cell.strategy).doubt_rows(cell.strategy, rows, cell.world_size)
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
