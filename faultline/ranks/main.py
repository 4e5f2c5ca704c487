"""One rank of one cell: build the scenario, train it under the strategy, and report what happened."""

import os
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from faultline import scenario, strategies
from faultline.base.paths import REPROS
from faultline.catalogue import loading, records
from faultline.cells.cell import HALF, Cell
from faultline.ranks import (
    accelerate,
    checkpointing,
    compare,
    executed,
    life,
    meeting,
    nvml,
    observer,
    process,
    repeatable,
    saved,
    sketch,
    state,
    tensor_file,
    trainers,
)
from faultline.ranks.job import FIRST, SECOND, Job
from faultline.ranks.own_model import target
from faultline.ranks.remedy import Remedy
from faultline.ranks.report import KINDS, Report, error_report
from faultline.ranks.run import Injection, Run, injection, note_rows, note_use, perturb, show
from faultline.scenario import Scenario, to
from faultline.strategies import Setup, Wrapped


def main(job: Job, rank: int) -> Report:
    """Run one rank of a job; an exception becomes part of its report."""
    before = process.settings()
    for number in range(job.times):
        if number:
            accelerate.begin_anew()
        report = Report(rank, evidence={"at_fork": job.at_fork} if job.at_fork else {})
        started = time.monotonic()
        try:
            with executed.recorded(report.executed) if job.executed else nullcontext():
                _run(job, report)
        except BaseException as error:  # noqa: BLE001 - whatever ends a rank is its report
            report.error = process.blamed(error_report(error), before, of_user=bool(job.target))
        report.seconds = time.monotonic() - started
    return report


def _run(job: Job, report: Report) -> None:
    cell = Cell.parse(job.cell)
    os.environ["TMPDIR"] = tempfile.tempdir = job.folder
    if job.load:
        return saved.load(cell, Path(job.checkpoint), report)
    setup = _set_up(cell, job, report)
    if job.target:
        os.chdir(job.target.cwd)  # a batch may be read from a file, later than the model is built
        alone = not strategies.distributed(cell.strategy)
        setup = replace(setup, reference=alone and job.target.world_size > 1)  # one process in place of so many
        variant = records.Variant(cell.variant, job.target.trainer)
        run = Run(target.Module(job.target), variant, cell, setup, report)
    else:
        module = loading.load_module(REPROS / cell.failure)
        checkpoint = job.checkpoint if hasattr(module, "save") else ""
        variant = module.FAILURE.variant(cell.variant)
        variant = replace(variant, remedy=Remedy(variant.remedy))
        run = Run(module, variant, cell, setup, report, checkpoint=checkpoint)
    run = replace(run, half=job.half, state=job.state)
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
            report.started = compare.started(run.trace, reference, cell.precision)
            report.before = HALF if job.half == SECOND else 0
            report.steps = compare.compare(
                *(run.trace, reference, noise, cell.precision, setup.data_rank, setup.data_world), before=report.before
            )
            wrong = any(step.bad for step in report.steps)
            report.drawn = compare.drawn(run.trace, reference, cell.precision, wrong)
            report.compared = tuple(
                kind for kind in KINDS if all(getattr(step, kind) is not None for step in report.steps)
            )
            if job.target and job.target.sketched:
                report.sketch = sketch.of(run.trace)
            report.digests = tuple(compare.digest(weights) for weights in run.trace.weights)
            report.entered = tuple(
                {name: compare.digest({name: tensor}) for name, tensor in entered.items()}
                for entered in run.trace.entered
            )
    return None


def _train(run: Run) -> None:
    try:
        (trainers.train if run.variant.trainer else train_scenario)(run)
    finally:
        remedy = run.variant.remedy
        elsewhere = run.checkpoint or run.half  # another process may ask for it
        if isinstance(remedy, Remedy) and not remedy.is_broken and not elsewhere:
            run.report.evidence["remedy_read"] = remedy.read
        if run.cell.device == "cuda":
            run.report.evidence["tf32"] = repeatable.tf32()


def _set_up(cell: Cell, job: Job, report: Report) -> Setup:
    """Device and process group, of which a cell in one process has none: libraries would distribute."""
    rank, world, distributed = report.rank, cell.world_size, strategies.distributed(cell.strategy)
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


def train_scenario(run: Run) -> None:
    """The plain loop: batch, loss, backward, step, with gradients and weights read in between."""
    trace, report, strategy = run.trace, run.report, strategies.family(run.cell.strategy)
    with scenario.building():
        built = run.inject.scenario(run.module.scenario(run.variant.remedy, run.setup), run.setup)
    native = 1 if built.by_hand else built.micro_batches
    keywords = built.keywords.get(strategies.family_name(run.cell.strategy), {})
    setup = replace(run.setup, deepspeed=built.deepspeed, keywords=keywords, micro_batches=native)
    run = replace(run, setup=setup)
    report.evidence |= {"micro_batches": built.micro_batches, "engine_accumulates": native}
    run.inject.model(built.model)
    here = {name: observer.local(parameter) for name, parameter in built.model.named_parameters()}
    here |= state.buffers(built.model) | state.unsaved(built.model)
    report.evidence["built"] = compare.digest(compare.copy(here))
    (built.checkpoint or checkpointing.enable)(built.model, run.cell.checkpointing)
    report.evidence["checkpointing_set"] = checkpointing.configured(built.model)
    tied = observer.tied(built.model)
    scenario.share_dropout(built.model)
    built.model.to(run.setup.device)
    wrapped = _wrap(run, built)
    report.evidence |= strategy.evidence(wrapped.model) | {"gradients_remain": wrapped.gradients_remain}
    show(run)
    if built.second:
        report.evidence["second"] = accelerate.placement(built.second(wrapped.accelerator))
    trace.initial.update(compare.copy(strategy.parameters(wrapped.model)))
    trace.held.update(compare.copy(state.buffers(wrapped.model)))
    trace.unsaved.update(compare.copy(state.unsaved(wrapped.model)))
    if statistics := state.batch_statistics(built.model):
        report.evidence["batch_statistics"] = statistics
    entry = state.Entry(built.model, compare.copy, report.rank)
    shares = state.Shares(built, compare.copy) if run.setup.reference else None
    watch, apart = checkpointing.Watch(built.model), 0.0
    try:
        if run.half == SECOND:
            life.load(run, built, wrapped)
        elif built.check:
            with watch.training():
                rows = built.batch(0, run.setup.data_rank, run.setup.data_world)
                built.check(wrapped.model, to(rows, run.setup.device))
        for step in life.span(run):
            replaced = built.before_step and built.before_step(wrapped.model, step)
            if replaced is not None:
                wrapped = _wrap(run, replace(built, model=replaced))
                entry = state.Entry(replaced, compare.copy, report.rank)
            entry.expect()
            if shares:
                shares.begin()
            with built.observer.step() if built.observer else nullcontext():
                for number in range(step * built.micro_batches, (step + 1) * built.micro_batches):
                    _micro_batch(run, built, wrapped, number, watch)
                    if shares:
                        shares.ran()
            if shares:
                trace.shares.append(shares.end(partial(_passes, run, built, wrapped, step)))
            # A step may change them, such as one that clips.
            gradients = compare.copy(strategy.gradients(wrapped.model)) if wrapped.gradients_remain else None
            wrapped.step()
            note_use(run, wrapped.model)
            trace.add(gradients, strategy.parameters(wrapped.model), built.observer and built.observer.outputs)
            trace.keep(state.buffers(wrapped.model), entry.held, entry.replaced)
            if run.checkpoint and step + 1 == saved.SAVED_AFTER:
                saved.save(run, wrapped, tied)
        if run.half == FIRST:
            life.save(run, built, wrapped)
        if shares and built.whole:
            apart = built.whole(wrapped.model)
    finally:
        watch.close()
        report.evidence |= watch.evidence()
        if built.observer:
            trace.logged.extend(built.observer.logged)
            normalising = tuple(report.evidence.get("batch_statistics", ()))
            left = {}
            if shares:
                of_rows = tuple(name for name in shares.unlike_buffers if name.rpartition(".")[0] not in normalising)
                left = {"left_unlike": tuple(shares.unlike), "not_saved": tuple(shares.not_saved)}
                left |= {"unlike_buffers": of_rows}
            report.facts = replace(built.observer.facts(), batch_statistics=normalising, whole_apart=apart, **left)


def _wrap(run: Run, built: Scenario) -> Wrapped:
    wrap = accelerate.wrap if built.second or built.accelerate else strategies.wrap
    if wrap is strategies.wrap:  # what accelerate makes of it has to be seen
        run.report.evidence["wrapping"] = run.cell.strategy
    wrapped = wrap(built, run.cell.strategy, run.setup)
    wrapped = run.inject.wrapped(built.loop(wrapped) if built.loop else wrapped, run.setup)
    run.report.evidence.pop("wrapping", None)
    return wrapped


def _micro_batch(run: Run, built: Scenario, wrapped: Wrapped, number: int, watch: checkpointing.Watch) -> None:
    """Forward and backward of a micro-batch, each way of accumulating as its users write it."""
    report, setup = run.report, run.setup
    with scenario.building():  # an image processor may need what the stack doesn't have
        rows = built.batch(number, setup.data_rank, setup.data_world)
    note_rows(run, rows)
    batch = to(rows, setup.device)
    last = (number + 1) % built.micro_batches == 0
    if built.by_hand and strategies.distributed(run.cell.strategy):
        accumulating = built.by_hand(wrapped.model, last)
    else:
        accumulating = wrapped.accumulate(last)
    with accumulating, (built.around or nullcontext)():
        with watch.training(), _autocast(run):
            loss = built.loss(wrapped.model, batch)
        report.losses.append(loss.item())
        wrapped.backward(loss / built.micro_batches if built.by_hand else loss)


def _autocast(run: Run) -> torch.autocast:
    casts = run.cell.precision == "bf16" and not strategies.casts(run.cell.strategy)  # or the engine does it
    return torch.autocast(run.setup.device.type, torch.bfloat16, enabled=casts)


def _passes(run: Run, built: Scenario, wrapped: Wrapped, step: int, rank: int, world: int) -> None:
    """The forward passes of one rank's rows in a step, for what they leave behind in the model."""
    for number in range(step * built.micro_batches, (step + 1) * built.micro_batches):
        with (built.around or nullcontext)(), _autocast(run):
            built.loss(wrapped.model, to(built.batch(number, rank, world), run.setup.device))


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
