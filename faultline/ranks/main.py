"""One rank of one cell: build the scenario, train it under the strategy, and report what happened."""

import os
import tempfile
import time
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from faultline import strategies
from faultline.base.paths import REPROS
from faultline.catalogue import loading, records
from faultline.cells.cell import HALF
from faultline.ranks import (
    accelerate,
    compare,
    executed,
    life,
    meeting,
    nvml,
    plain_loop,
    repeatable,
    saved,
    tensor_file,
    trainers,
)
from faultline.ranks.compare import Trace
from faultline.ranks.job import SECOND, Job
from faultline.ranks.own_model import target
from faultline.ranks.report import KINDS, Measure, Report, Sketch, blame_settings, error_report, process_settings
from faultline.ranks.run import Injection, Remedy, Run, injection, note_compiled, perturb
from faultline.strategies import Setup


def main(job: Job, rank: int) -> Report:
    """Run one rank of a job; an exception becomes part of its report."""
    before = process_settings()
    for number in range(job.times):
        if number:
            accelerate.begin_anew()
        report = Report(rank, evidence={"at_fork": job.at_fork} if job.at_fork else {})
        started = time.monotonic()
        try:
            with executed.recorded(report.executed) if job.executed else nullcontext():
                _run(job, report)
        except BaseException as error:  # noqa: BLE001 - whatever ends a rank is its report
            report.error = blame_settings(error_report(error), before, of_user=bool(job.target))
        report.seconds = time.monotonic() - started
    return report


def _run(job: Job, report: Report) -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = job.folder
    if job.load:
        return saved.load(job.cell, Path(job.checkpoint), report)
    run = _load(job, _set_up(job, report), report)
    if job.record:
        return record(run, Path(job.reference))
    reference, noise = tensor_file.read(Path(job.reference))
    run = replace(run, inject=injection(job.inject))
    if run.half == SECOND and run.variant.trainer:  # a trainer loads before anybody can read what it began with
        life.remembered(run)
    try:
        _train(run)
    finally:
        if run.trace.weights:
            _compare(run, reference, noise)
            if job.target and job.target.sketched:
                report.sketch = sketch(run.trace)
    return None


def _load(job: Job, setup: Setup, report: Report) -> Run:
    """What a rank runs: somebody's own model, or a variant of a failure."""
    cell = job.cell
    if job.target:
        os.chdir(job.target.cwd)  # a batch may be read from a file, later than the model is built
        alone = not strategies.distributed(cell.strategy)
        setup = replace(setup, reference=alone and job.target.world_size > 1)  # one process in place of so many
        variant = records.Variant(cell.variant, job.target.trainer)
        return Run(target.Module(job.target), variant, cell, setup, report, half=job.half, state=job.state)
    module = loading.load_module(REPROS / cell.failure)
    checkpoint = job.checkpoint if hasattr(module, "save") else ""
    variant = module.FAILURE.variant(cell.variant)
    variant = replace(variant, remedy=Remedy(variant.remedy))
    return Run(module, variant, cell, setup, report, checkpoint=checkpoint, half=job.half, state=job.state)


def _compare(run: Run, reference: Trace, noise: Trace) -> None:
    """Hold what a rank has seen against its reference, and report what of it was alike and how far the rest is off."""
    cell, report, trace = run.cell, run.report, run.trace
    report.started = compare.started(trace, reference, cell.precision)
    report.before = HALF if run.half == SECOND else 0
    place = run.setup.data_rank, run.setup.data_world
    report.steps = compare.compare(trace, reference, noise, cell.precision, *place, before=report.before)
    report.drawn = compare.drawn(trace, reference, cell.precision, any(step.bad for step in report.steps))
    report.compared = tuple(kind for kind in KINDS if all(getattr(step, kind) is not None for step in report.steps))
    report.digests = tuple(compare.digest(weights) for weights in trace.weights)
    report.entered = tuple(
        {name: compare.digest({name: tensor}) for name, tensor in entered.items()} for entered in trace.entered
    )


def sketch(trace: Trace) -> Sketch:
    """A run in a few numbers, by which it can be held against others without its tensors; of gradients only where they
    were read."""
    first = next(iter(trace.gradients), None) or {}
    last = compare.movement(trace, -1) if trace.weights else {}
    norms = [torch.stack(torch._foreach_norm([*each.values()])).norm().item() for each in trace.gradients if each]
    return Sketch(_measures(first), _measures(last), tuple(norms), tuple(trace.logged))


def _measures(tensors: compare.Tensors) -> dict[str, Measure]:
    measures: dict[str, Measure] = {}
    for name, tensor in tensors.items():
        signs = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.randint(0, 2, (tensor.numel(),), generator=signs) * 2 - 1
        measures[name] = (tensor.norm().item(), float(tensor.flatten().dot(drawn.to(tensor.dtype))))
    return measures


def _train(run: Run) -> None:
    try:
        (trainers.train if run.variant.trainer else plain_loop.train)(run)
    finally:
        remedy = run.variant.remedy
        elsewhere = run.checkpoint or run.half  # another process may ask for it
        if isinstance(remedy, Remedy) and not remedy.is_broken and not elsewhere:
            run.report.evidence["remedy_read"] = remedy.read
        if run.cell.device == "cuda":
            run.report.evidence["tf32"] = repeatable.tf32()
        note_compiled(run)


def _set_up(job: Job, report: Report) -> Setup:
    """Device and process group, of which a cell in one process has none: libraries would distribute."""
    cell, rank = job.cell, report.rank
    world, distributed = cell.world_size, strategies.distributed(cell.strategy)
    torch.manual_seed(1000 + rank)
    device, share = torch.device("cpu"), world
    if cell.device == "cuda":
        if not distributed:  # a trainer puts a lone process that sees several GPUs under nn.DataParallel
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        here, count = job.ranks_here or world, torch.cuda.device_count()
        device, share = torch.device("cuda", (rank - job.first_rank) % count), -(-here // count)
        torch.cuda.set_device(device)
        nvml.begin()
    report.evidence |= {"backend": "none", "world_size": 1, "device": str(device), "ranks_per_device": share}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        uuid = f"GPU-{properties.uuid}" if hasattr(properties, "uuid") else ""  # which torch before 2.5 doesn't have
        report.evidence |= {"gpu": properties.name, "gpu_uuid": uuid, "gpus_lent": list(job.gpus)}
        report.evidence |= repeatable.software()
        repeatable.begin()
    if job.node:
        report.evidence["node"] = meeting.node(job)
    if distributed:
        if device.type == "cuda" and share > 1:
            accelerate.honest_on_shared_gpus()
        meeting.meet(rank, world, device, "nccl" if device.type == "cuda" and share == 1 else "gloo", job)
        report.evidence |= {
            "backend": torch.distributed.get_backend(),
            "world_size": torch.distributed.get_world_size(),
        }
    scheduled = cell.life != "straight"
    place = rank, world, cell.checkpointing, cell.precision, device, job.folder
    return Setup(*place, {}, scheduled=scheduled, strategy=cell.strategy)


def record(run: Run, file: Path) -> None:
    """Train the reference twice, once with weights moved by one unit in the last place, and save both."""
    report, setup = run.report, replace(run.setup, reference=True)
    traces = []
    for change in (Injection(), Injection(model=lambda model: perturb(model, run.cell.precision))):
        traces.append(compare.Trace())
        _train(replace(run, setup=setup, inject=change, trace=traces[-1]))
    if report.facts:
        noise = compare.distance(*(trace.gradients[0] or {} for trace in traces))
        report.facts = replace(report.facts, checkpointing=report.evidence["checkpointing_seen"], noise=noise)
    if doubts := strategies.family("single").doubts({}, report.evidence):
        raise RuntimeError(f"not a run in one process: {'; '.join(doubts)}")
    partial = file.with_suffix(f".{os.getpid()}")
    tensor_file.write(traces, partial)
    partial.replace(file)
