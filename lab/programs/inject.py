"""Seeded faults in the ranks: a fault's `Injection`, which `Job.inject` names."""

import contextlib
import dataclasses
import math
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import distributed, nn

from faultline.cells.cell import HALF
from faultline.ranks.run import Injection
from faultline.scenario import Scenario
from faultline.strategies import Setup, Wrapped
from lab.programs.engines import held, own_results, unreduced_in_ddp
from lab.programs.fault import FAULTY, OF_WEIGHT, Fault, parse

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass
class Clock:
    """The step that a rank is in, from 1 and through both halves of a life."""

    step: int = 1


def injection(text: str) -> Injection:
    """The change that makes a healthy run have a fault, as JSON."""
    fault, clock = parse(text), Clock()

    def wrapped(wrapped: Wrapped, setup: Setup) -> Wrapped:
        def step() -> None:
            with torch.no_grad():
                before = [tensor.clone() for tensor in held(wrapped.model)]
                wrapped.step()
                if (setup.rank, clock.step, fault.kind) == (FAULTY, fault.step, "stale"):
                    for tensor, old in zip(held(wrapped.model), before, strict=True):
                        tensor.copy_(old)
                _after_step(fault, clock, wrapped.model, setup)

        backward = _backward(fault, clock, wrapped.backward, wrapped.model, setup)
        return dataclasses.replace(wrapped, backward=backward, step=step)

    def resumed(wrapped: Wrapped, setup: Setup) -> None:
        clock.step += HALF

    return Injection(
        model=lambda model: _in_model(fault, clock, model),
        trainer=lambda trainer, setup: _in_trainer(fault, clock, trainer, setup),
        scenario=lambda built, setup: _in_scenario(fault, clock, built, setup),
        wrapped=wrapped,
        resumed=resumed,
    )


def _backward(
    fault: Fault, clock: Clock, backward: Callable[..., None], model: Any, setup: Setup
) -> Callable[..., None]:
    """An engine's backward pass, which reduces no gradients in the step at fault; under DDP, a hook sees to that."""
    if fault.kind != "unreduced":
        return backward
    if hasattr(model, "register_comm_hook") and hasattr(model, "reducer"):
        unreduced_in_ddp(model, setup, lambda: clock.step == fault.step)
        return backward

    def unreduced(*args: Any, **kwargs: Any) -> None:
        with own_results(setup) if clock.step == fault.step else contextlib.nullcontext():
            return backward(*args, **kwargs)

    return unreduced


def _after_step(fault: Fault, clock: Clock, model: Any, setup: Setup) -> None:
    """Count a step that a wrapped model has made, and turn a bit of its weights in the step at fault."""
    if (setup.rank, clock.step, fault.kind) == (FAULTY, fault.step, "bit"):
        first = held(model)[0].view(-1)[:1]
        with torch.no_grad():
            first.copy_(torch.nextafter(first, torch.full_like(first, math.inf)))
    clock.step += 1


def _in_trainer(fault: Fault, clock: Clock, trainer: Any, setup: Setup) -> None:
    """The fault in a trainer of transformers or TRL, which makes its loop, its engine and its optimizer by itself."""
    from transformers import TrainerCallback

    class Counting(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            accelerator = trainer.accelerator
            accelerator.backward = _backward(fault, clock, accelerator.backward, trainer.model_wrapped, setup)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            _after_step(fault, clock, trainer.model_wrapped, setup)

    compute_loss, create_optimizer = trainer.compute_loss, trainer.create_optimizer

    def loss(*args: Any, **kwargs: Any) -> Any:
        value = compute_loss(*args, **kwargs)
        times = _times(fault, clock)
        return (value[0] * times, *value[1:]) if isinstance(value, tuple) else value * times

    def optimizer(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        return _optimizer(fault, clock, create_optimizer(*args, **kwargs), setup)

    trainer.add_callback(Counting())
    trainer.create_optimizer = optimizer
    if fault.kind == "loss":
        trainer.compute_loss = loss
    if fault.kind == "rate":
        trainer.args.learning_rate *= fault.times


class Changed(torch.autograd.Function):
    """A weight as it is, whose gradient is changed on its way to it."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, change: Change) -> torch.Tensor:
        ctx.change = change
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.change(gradient), None


def _in_model(fault: Fault, clock: Clock, model: nn.Module) -> None:
    if fault.kind == "untied":
        head: Any = model.get_submodule(fault.module)
        head.weight = nn.Parameter(head.weight.detach().clone())
    if fault.kind == "buffer" and distributed.get_rank() == FAULTY:
        model.get_buffer(fault.module).add_(0.5)
    if fault.kind not in OF_WEIGHT:
        return
    layer: Any = model.get_submodule(fault.module)
    if fault.kind == "frozen":
        layer.weight.requires_grad_(False)
    elif fault.kind == "start":
        with torch.no_grad():  # on every rank: FSDP may shard it so that one of them keeps nothing of it
            layer.weight.mul_(1.5)
    else:
        change = _change(fault, clock)
        layer.forward = lambda x: nn.functional.linear(x, Changed.apply(layer.weight, change), layer.bias)


def _change(fault: Fault, clock: Clock) -> Change:
    """What a fault makes of one weight's gradient [out, in]."""

    def change(gradient: torch.Tensor) -> torch.Tensor:
        if clock.step < fault.step:
            return gradient
        if fault.kind == "factor":
            return gradient * fault.times
        if fault.kind == "zero":
            return gradient * 0.0
        if fault.kind == "row":
            rows = torch.ones(len(gradient), 1)
            rows[-1] = 0.0
            return gradient * rows
        if distributed.get_rank() != FAULTY:
            return gradient
        return gradient * (math.nan if fault.kind == "nan" else 0.0)

    return change


def _in_scenario(fault: Fault, clock: Clock, built: Scenario, setup: Setup) -> Scenario:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        return built.loss(model, batch) * _times(fault, clock)

    def batch(step: int, rank: int, world_size: int) -> Any:
        at_fault = (rank, step + 1) == (FAULTY, fault.step)
        return built.batch(step + 5 if at_fault else step, rank, world_size)

    def optimizer(model: Any) -> torch.optim.Optimizer:
        assert built.optimizer
        made = built.optimizer(model)
        for group in made.param_groups if fault.kind == "rate" else ():
            group["lr"] *= fault.times
        return _optimizer(fault, clock, made, setup)

    if fault.kind == "loss":
        return dataclasses.replace(built, loss=loss)
    if fault.kind == "rows":
        return dataclasses.replace(built, batch=batch)
    return dataclasses.replace(built, optimizer=optimizer)


def _times(fault: Fault, clock: Clock) -> float:
    """What a loss is multiplied by: from the step at fault on by the fault's factor."""
    return fault.times if clock.step >= fault.step else 1.0


def _optimizer(fault: Fault, clock: Clock, made: torch.optim.Optimizer, setup: Setup) -> torch.optim.Optimizer:
    """An optimizer that loses its momentum in the step at fault, or makes no step there on one rank."""
    original = made.step

    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if clock.step == fault.step and fault.kind == "momentum":
            made.state.clear()
        if (setup.rank, clock.step, fault.kind) == (FAULTY, fault.step, "skipped"):
            return None
        return original(*args, **kwargs)

    made.step = MethodType(step, made)  # a method, as torch 2.11's schedulers need it
    return made
