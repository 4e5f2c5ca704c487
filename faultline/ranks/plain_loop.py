"""Scenario-level cells: the plain loop of a user, with the strategy's engine around the model."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch

from faultline import scenario, strategies
from faultline.ranks import accelerate, checkpointing, compare, life, parameters, saved, state
from faultline.ranks.job import FIRST, SECOND
from faultline.ranks.run import Run, loading, note_compiled, note_rows, note_use, show
from faultline.scenario import Scenario, to
from faultline.strategies import Wrapped


def train(run: Run) -> None:
    """Build the scenario, wrap its model, write down the evidence, and train, with all read that each step left."""
    run, built = _build(run)
    tied = parameters.tied(built.model)
    scenario.share_dropout(built.model)
    built.model.to(run.setup.device)
    wrapped = _wrap(run, built)
    _prove(run, built, wrapped)
    _read_start(run, built, wrapped)
    loop = Loop(run, built, wrapped, tied)
    try:
        loop.begin()
        for step in life.span(run):
            loop.step(step)
        loop.end()
    finally:
        loop.close()


def _build(run: Run) -> tuple[Run, Scenario]:
    """The scenario with its checkpointing mode set, and the run as it asks for it; what is built is evidence."""
    with scenario.building(), loading(run):
        built = run.inject.scenario(run.module.scenario(run.variant.remedy, run.setup), run.setup)
    native = 1 if built.by_hand else built.micro_batches
    keywords = built.keywords.get(strategies.family_name(run.cell.strategy), {})
    setup = replace(run.setup, deepspeed=built.deepspeed, keywords=keywords, micro_batches=native)
    evidence = run.report.evidence
    evidence |= {"micro_batches": built.micro_batches, "engine_accumulates": native}
    if built.same_rows:
        evidence["same_rows"] = True
    if built.last_window:
        evidence["last_window"] = built.last_window
    run.inject.model(built.model)
    here = {name: parameters.local(parameter) for name, parameter in built.model.named_parameters()}
    here |= state.buffers(built.model) | state.unsaved(built.model)
    evidence["built"] = compare.digest(compare.copy(here))
    (built.checkpoint or checkpointing.enable)(built.model, run.cell.checkpointing)
    evidence["checkpointing_set"] = checkpointing.configured(built.model)
    return replace(run, setup=setup), built


def _prove(run: Run, built: Scenario, wrapped: Wrapped) -> None:
    """What wraps the model, and where a second one is, as evidence."""
    family, evidence = strategies.family(run.cell.strategy), run.report.evidence
    evidence |= family.evidence(wrapped.model) | {"gradients_remain": wrapped.gradients_remain}
    show(run)
    if built.second:
        evidence["second"] = accelerate.placement(built.second(wrapped.accelerator))


def _read_start(run: Run, built: Scenario, wrapped: Wrapped) -> None:
    """What training begins with."""
    run.trace.initial.update(compare.copy(strategies.family(run.cell.strategy).parameters(wrapped.model)))
    run.trace.held.update(compare.copy(state.buffers(wrapped.model)))
    run.trace.unsaved.update(compare.copy(state.unsaved(wrapped.model)))
    if statistics := state.batch_statistics(built.model):
        run.report.evidence["batch_statistics"] = statistics


class Loop:
    """A scenario's steps under its engine, and what is seen of them.

    A reference keeps the `shares` of its steps, and how far the loss of all rows at once is `apart` from their mean.
    """

    def __init__(self, run: Run, built: Scenario, wrapped: Wrapped, tied: list[list[str]]) -> None:
        self.run, self.built, self.wrapped, self.tied = run, built, wrapped, tied
        self.entry = state.Entry(built.model, compare.copy, run.report.rank)
        self.shares = state.Shares(built, compare.copy) if run.setup.reference else None
        self.watch, self.apart = run.watch(built.model), 0.0

    def begin(self) -> None:
        """Load what the first half of a life has saved; else make the scenario's check."""
        run, built = self.run, self.built
        if run.half == SECOND:
            life.load(run, built, self.wrapped)
        elif built.check:
            with self.watch.training():
                rows = built.batch(0, run.setup.data_rank, run.setup.data_world)
                built.check(self.wrapped.model, to(rows, run.setup.device))

    def step(self, step: int) -> None:
        """One step of the optimizer, and what it left."""
        self._prepare(step)
        self._micro_batches(step)
        gradients = self._gradients()  # a step may change them, such as one that clips
        self.wrapped.step()
        self._read(gradients)
        if self.run.checkpoint and step + 1 == saved.SAVED_AFTER:
            saved.save(self.run, self.wrapped, self.tied)

    def end(self) -> None:
        """Save the first half of a life; in a reference, hold the loss of all rows against that of their shares."""
        if self.run.half == FIRST:
            life.save(self.run, self.built, self.wrapped)
        if self.shares and self.built.whole:
            self.apart = self.built.whole(self.wrapped.model)

    def close(self) -> None:
        """What was seen, to wherever the loop came."""
        report, observed = self.run.report, self.built.observer
        self.watch.close()
        report.evidence |= self.watch.evidence()
        if not observed:
            return
        self.run.trace.logged.extend(observed.logged)
        normalising = tuple(report.evidence.get("batch_statistics", ()))
        left = {}
        if shares := self.shares:
            of_rows = tuple(name for name in shares.unlike_buffers if name.rpartition(".")[0] not in normalising)
            left = {"left_unlike": tuple(shares.unlike), "not_saved": tuple(shares.not_saved)}
            left |= {"unlike_buffers": of_rows}
        report.facts = replace(observed.facts(), batch_statistics=normalising, whole_apart=self.apart, **left)

    def _prepare(self, step: int) -> None:
        """What the scenario does between steps; a bare model that it gives back is wrapped again."""
        replaced = self.built.before_step and self.built.before_step(self.wrapped.model, step)
        if replaced is not None:
            self.wrapped = _wrap(self.run, replace(self.built, model=replaced))
            self.entry = state.Entry(replaced, compare.copy, self.run.report.rank)

    def _micro_batches(self, step: int) -> None:
        built, shares = self.built, self.shares
        self.entry.expect()
        if shares:
            shares.begin()
        with built.observer.step() if built.observer else nullcontext():
            numbers = _numbers(self.run, built, step)
            for number in numbers:
                _micro_batch(self.run, built, self.wrapped, number, number == numbers[-1], self.watch)
                if shares:
                    shares.ran()
        if shares:
            self.run.trace.shares.append(shares.end(partial(_passes, self.run, built, self.wrapped, step)))

    def _gradients(self) -> compare.Tensors | None:
        """A copy of the whole gradients; None where the engine leaves none."""
        family = strategies.family(self.run.cell.strategy)
        return compare.copy(family.gradients(self.wrapped.model)) if self.wrapped.gradients_remain else None

    def _read(self, gradients: compare.Tensors | None) -> None:
        """Put what a step has done into the trace."""
        run, model, observed = self.run, self.wrapped.model, self.built.observer
        note_use(run, model)
        weights = strategies.family(run.cell.strategy).parameters(model)
        run.trace.add(gradients, weights, observed and observed.outputs)
        run.trace.keep(state.buffers(model), self.entry.held, self.entry.replaced)


def _wrap(run: Run, built: Scenario) -> Wrapped:
    wrap = accelerate.wrap if built.second or built.accelerate else strategies.wrap
    if wrap is strategies.wrap:  # what accelerate makes of it has to be seen
        run.report.evidence["wrapping"] = run.cell.strategy
    wrapped = wrap(built, run.cell.strategy, run.setup)
    wrapped = run.inject.wrapped(built.loop(wrapped) if built.loop else wrapped, run.setup)
    if run.compiled:
        wrapped.model.compile(backend=run.cell.compile)  # once it is wrapped, as accelerate does; DeepSpeed has its own
    run.report.evidence.pop("wrapping", None)
    return wrapped


def _numbers(run: Run, built: Scenario, step: int) -> range:
    """The micro-batches of a step."""
    short = built.last_window if step + 1 == run.cell.steps else 0
    return range(step * built.micro_batches, step * built.micro_batches + (short or built.micro_batches))


def _micro_batch(
    run: Run, built: Scenario, wrapped: Wrapped, number: int, last: bool, watch: checkpointing.Watch
) -> None:
    """Forward and backward of a micro-batch, each way of accumulating as its users write it."""
    report, setup = run.report, run.setup
    with scenario.building():  # an image processor may need what the stack doesn't have
        rows = built.batch(number, setup.data_rank, setup.data_world)
    note_rows(run, rows)
    batch = to(rows, setup.device)
    if built.by_hand and strategies.distributed(run.cell.strategy):
        accumulating = built.by_hand(wrapped.model, last)
    else:
        accumulating = wrapped.accumulate(last)
    with accumulating, (built.around or nullcontext)():
        with watch.training(), _autocast(run):
            loss = built.loss(wrapped.model, batch)
        if run.compiled and not report.losses:  # nothing is compiled before the first forward pass
            note_compiled(run)
            show(run)
        report.losses.append(loss.item())
        wrapped.backward(loss / built.micro_batches if built.by_hand else loss)


def _autocast(run: Run) -> torch.autocast:
    casts = run.cell.precision == "bf16" and not strategies.family(run.cell.strategy).casts  # or the engine does it
    return torch.autocast(run.setup.device.type, torch.bfloat16, enabled=casts)


def _passes(run: Run, built: Scenario, wrapped: Wrapped, step: int, rank: int, world: int) -> None:
    """The forward passes of one rank's rows in a step, for what they leave behind in the model."""
    for number in _numbers(run, built, step):
        with (built.around or nullcontext)(), _autocast(run):
            built.loss(wrapped.model, to(built.batch(number, rank, world), run.setup.device))
