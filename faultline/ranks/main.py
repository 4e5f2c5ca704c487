"""One rank of one cell: build the scenario, train it under the strategy, and report what happened."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from faultline import scenario, strategies
from faultline.base.paths import REPROS
from faultline.catalogue import loading, records
from faultline.cells.cell import STEPS, Cell
from faultline.ranks import accelerate, checkpointing, compare, trainers
from faultline.ranks import saved as ranks_saved
from faultline.ranks.job import Injection, Run, injection, show
from faultline.ranks.own_model import target
from faultline.ranks.report import Report, error_report
from faultline.scenario import to


def main(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Run one rank of a job and return its report; an exception becomes part of it.

    A job has the keys cell, folder, reference, and optionally `at_fork` (what the
    server says of itself), `target` (somebody's own model, see `targets.Module`,
    instead of the catalogue's), `inject` (see `run.injection`), `record` (write a
    reference instead of comparing with one), `checkpoint` (the folder that a failure with a `save` saves to), `load`
    (load what is in there and do nothing else, see `roundtrip.load`) and `times` (do it all again in the
    same ranks and report the last time: how long the bare work takes).
    """
    for number in range(job.get("times", 1)):
        if number:
            accelerate.begin_anew()
        report = Report(rank)
        report.evidence |= {"at_fork": job["at_fork"]} if "at_fork" in job else {}
        started = time.monotonic()
        try:
            _run(job, rank, report)
        except BaseException as error:  # noqa: BLE001 - whatever ends a rank is its report
            report.error = error_report(error)
        report.seconds = time.monotonic() - started
    return asdict(report)


def _run(job: dict[str, Any], rank: int, report: Report) -> None:
    cell = Cell.parse(job["cell"])
    if job.get("load"):
        os.environ["TMPDIR"] = tempfile.tempdir = job["folder"]
        return ranks_saved.load(cell, Path(job["checkpoint"]), report)
    setup = _set_up(cell, rank, job, report)
    if "target" in job:
        os.chdir(job["target"]["cwd"])  # a batch may be read from a file, later than the model is built
        run = Run(target.Module(job["target"]), records.Variant(cell.variant), cell, setup)
    else:
        module = loading.load_module(REPROS / cell.failure)
        run = Run(module, module.FAILURE.variant(cell.variant), cell, setup)
    if job.get("record"):
        return record(run, Path(job["reference"]), report)
    if hasattr(run.module, "save"):
        run = replace(run, checkpoint=job["checkpoint"])
    saved = compare.load(job["reference"])
    trace = compare.Trace({}, [], [])
    try:
        _trainer_of(run)(run, trace, report, injection(job.get("inject")))
    finally:
        if trace.weights:
            report.steps = compare.compare(trace, saved["reference"], saved["noise"], cell.precision)
            read = {kind: [getattr(step, kind) for step in report.steps] for kind in compare.KINDS}
            report.compared = tuple(kind for kind, steps in read.items() if None not in steps)
            report.digests = tuple(compare.digest(weights) for weights in trace.weights)
    return None


def _trainer_of(run: Run) -> Any:
    return trainers.train if run.variant.trainer else train_scenario


def _set_up(cell: Cell, rank: int, job: dict[str, Any], report: Report) -> strategies.Setup:
    """Environment, device and process group, over loopback; under somebody else's launcher, with its environment.

    The ranks meet at a socket that the server opened: no port has to be agreed on, none can be taken.
    """
    world = cell.world_size
    os.environ["TMPDIR"] = tempfile.tempdir = job["folder"]
    torch.manual_seed(1000 + rank)
    device, backend = torch.device("cpu"), "gloo"
    if cell.device == "cuda" and not strategies.distributed(cell.strategy):
        # A trainer puts a lone process that sees several GPUs under nn.DataParallel.
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if cell.device == "cuda":
        count = torch.cuda.device_count()
        device = torch.device("cuda", rank % count)
        torch.cuda.set_device(device)
        backend = "nccl" if count >= world else "gloo"
    report.evidence |= {
        "backend": "none",
        "world_size": 1,
        "device": str(device),
        "ranks_per_device": -(-world // torch.cuda.device_count()) if cell.device == "cuda" else world,
    }
    setup = strategies.Setup(rank, world, cell.checkpointing, cell.precision, device, job["folder"], {})
    if not strategies.distributed(cell.strategy):
        return setup  # no process group and none of its variables: libraries would distribute
    # Libraries take the device from LOCAL_RANK: ranks that share a GPU have to share the number.
    local = rank if device.index is None else device.index
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(local), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    if not torch.distributed.is_initialized():
        store = None
        if "port" in job:
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(job["port"]))
            listening = job["listening"] if rank == 0 else None
            store = torch.distributed.TCPStore(
                "127.0.0.1", job["port"], world, rank == 0, wait_for_workers=False, master_listen_fd=listening
            )
        torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=world)
    report.evidence |= {
        "backend": torch.distributed.get_backend(),
        "world_size": torch.distributed.get_world_size(),
    }
    return setup


def train_scenario(run: Run, trace: compare.Trace, report: Report, inject: Injection) -> None:
    """The plain loop: batch, loss, backward, step, with gradients and weights read in between."""
    cell = run.cell
    with scenario.building():
        built = inject.scenario(run.module.scenario(run.variant.remedy, run.setup), run.setup)
    native = 1 if built.by_hand else built.micro_batches
    setup = replace(run.setup, deepspeed=built.deepspeed, micro_batches=native)
    report.evidence |= {"micro_batches": built.micro_batches, "engine_accumulates": native}
    inject.model(built.model)
    (built.checkpoint or checkpointing.enable)(built.model, cell.checkpointing)
    report.evidence["checkpointing_set"] = checkpointing.configured(built.model)
    tied = ranks_saved.ties(built.model)
    scenario.share_dropout(built.model)
    built.model.to(setup.device)
    wrap = accelerate.wrap if built.second or built.accelerate else strategies.wrap
    if wrap is strategies.wrap:  # what accelerate makes of it has to be seen
        report.evidence["wrapping"] = cell.strategy
    wrapped = inject.wrapped(wrap(built, cell.strategy, setup), setup)
    report.evidence.pop("wrapping", None)
    strategy = strategies.family(cell.strategy)
    report.evidence |= strategy.evidence(wrapped.model) | {"gradients_remain": wrapped.gradients_remain}
    show(report, setup.folder)
    if built.second:
        report.evidence["second"] = accelerate.placement(built.second(wrapped.accelerator))
    trace.initial.update(compare.copy(strategy.parameters(wrapped.model)))
    watch = checkpointing.Watch(built.model)
    try:
        if built.check:
            with watch.training():
                built.check(wrapped.model, to(built.batch(0, setup.rank, setup.world_size), setup.device))
        for step in range(STEPS):
            anew = built.before_step and built.before_step(wrapped.model, step)
            if anew is not None:
                wrapped = inject.wrapped(wrap(replace(built, model=anew), cell.strategy, setup), setup)
            with built.observer.step() if built.observer else nullcontext():
                for micro in range(built.micro_batches):
                    _micro_batch(built, wrapped, micro, step, setup, cell, watch, report)
            # A step may change them, such as one that clips.
            gradients = compare.copy(strategy.gradients(wrapped.model)) if wrapped.gradients_remain else None
            wrapped.step()
            trace.add(gradients, strategy.parameters(wrapped.model), built.observer and built.observer.outputs)
            if run.checkpoint and step + 1 == ranks_saved.SAVED_AFTER:
                ranks_saved.save(run, wrapped, trace, tied, report, inject)
    finally:
        watch.close()
        report.evidence |= watch.evidence()
        if built.observer:
            report.facts = built.observer.facts()


def _micro_batch(
    built: scenario.Scenario, wrapped: Any, micro: int, step: int, setup: Any, cell: Cell, watch: Any, report: Report
) -> None:
    """Forward and backward of one of a step's micro-batches, each way of accumulating as its users write it."""
    with scenario.building():  # an image processor may need what the stack doesn't have
        rows = built.batch(step * built.micro_batches + micro, setup.rank, setup.world_size)
    if found := tensors(rows):
        before = torch.tensor(list(report.evidence.get("rows", "").encode()), dtype=torch.uint8)
        report.evidence["rows"] = compare.digest({"before": before, **found})
    batch = to(rows, setup.device)
    last = micro == built.micro_batches - 1
    if built.by_hand and strategies.distributed(cell.strategy):
        accumulating = built.by_hand(wrapped.model, last)
    else:
        accumulating = wrapped.accumulate(last)
    with accumulating, (built.around or nullcontext)():
        with watch.training(), autocast(cell, setup):
            loss = built.loss(wrapped.model, batch)
        report.losses.append(loss.item())
        wrapped.backward(loss / built.micro_batches if built.by_hand else loss)


def autocast(cell: Cell, setup: Any) -> Any:
    """bf16 by autocast, unless the strategy's engine casts by itself."""
    enabled = cell.precision == "bf16" and not strategies.casts(cell.strategy)
    return torch.autocast(setup.device.type, torch.bfloat16, enabled=enabled)


def tensors(batch: Any, name: str = "") -> compare.Tensors:
    """The tensors of a batch, nested or not, by where they are."""
    if isinstance(batch, torch.Tensor):
        return {name: batch.detach().cpu().contiguous()}
    inner = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, list | tuple) else ()
    return {key: tensor for place, part in inner for key, tensor in tensors(part, f"{name}.{place}").items()}


def record(run: Run, file: Path, report: Report) -> None:
    """Train the reference twice, once with weights moved by one unit in the last place, and save both."""
    run = replace(run, setup=replace(run.setup, reference=True))
    traces = []
    for change in (Injection(), Injection(model=lambda model: compare.perturb(model, run.cell.precision))):
        trace = compare.Trace({}, [], [])
        _trainer_of(run)(run, trace, report, change)
        traces.append(trace)
    if report.facts:
        noise = compare.distance(*(trace.gradients[0] for trace in traces))
        report.facts = replace(report.facts, checkpointing=report.evidence["checkpointing_seen"], noise=noise)
    doubts = strategies.family("single").doubts({}, report.evidence)
    if doubts:
        raise RuntimeError(f"not a run in one process: {'; '.join(doubts)}")
    partial = file.with_suffix(f".{os.getpid()}")
    compare.save({"reference": traces[0], "noise": traces[1]}, partial)
    partial.replace(file)
