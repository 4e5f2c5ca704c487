"""Seeded faults in the ranks: the Injection of a fault as JSON, which `Job.inject` names."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import safetensors.torch
import torch
from torch import distributed, nn

from faultline.cells.cell import HALF
from faultline.ranks.run import Injection
from faultline.scenario import LR, MOMENTUM, Scenario, sgd
from faultline.strategies import Setup, Wrapped, merged
from lab.programs import changes
from lab.programs.changes import APART, CHECKPOINTS, LOADED, LOSSES, MESHES, ROWS, WEIGHTS, Clock, Tensors
from lab.programs.engines import local_weights, unreduced_in_ddp
from lab.programs.fault import FAULTY, OF_WEIGHT, Fault, parse

Change = Callable[[torch.Tensor], torch.Tensor]


def injection(text: str) -> Injection:
    """The change that makes a healthy run have a fault, as JSON."""
    fault = parse(text)
    clock = Clock(fault)
    return Injection(
        model=partial(_in_model, fault, clock),
        trainer=partial(_in_trainer, fault, clock),
        scenario=partial(_in_scenario, fault, clock),
        wrapped=partial(_in_engine, fault, clock),
        save=partial(_save, fault),
        resumed=partial(_resumed, fault, clock),
    )


def _in_engine(fault: Fault, clock: Clock, wrapped: Wrapped, setup: Setup) -> Wrapped:
    def step() -> None:
        with torch.no_grad():
            before = [tensor.clone() for tensor in local_weights(wrapped.model)]
            wrapped.step()
        _after_step(fault, clock, wrapped.model, before)

    return replace(wrapped, backward=_backward(fault, clock, wrapped.backward, wrapped.model, setup), step=step)


def _backward(
    fault: Fault, clock: Clock, backward: Callable[..., None], model: Any, setup: Setup
) -> Callable[..., None]:
    """An engine's backward pass, which reduces no gradients in the step at fault.

    Under DDP a communication hook leaves the sum away. The other engines call collectives from Python: those of the
    backward pass run, so that no peer waits, and the rank's own values are put where their result was.
    """
    if fault.kind not in APART:
        return backward
    alone = fault.kind == "one unreduced" and setup.rank != FAULTY
    if hasattr(model, "register_comm_hook") and hasattr(model, "reducer"):
        unreduced_in_ddp(model, setup, lambda: clock.step == fault.step and not alone)
        return backward

    def unreduced(*args: Any, **kwargs: Any) -> None:
        at_fault = clock.step == fault.step and not alone
        with APART[fault.kind](setup) if at_fault else contextlib.nullcontext():
            return backward(*args, **kwargs)

    return unreduced


def _after_step(fault: Fault, clock: Clock, model: Any, before: Tensors) -> None:
    """Count a step that a wrapped model has made, and change its weights in the step at fault."""
    if fault.kind in WEIGHTS and clock.strikes:
        with torch.no_grad():
            WEIGHTS[fault.kind](local_weights(model), before)
    clock.step, clock.losses = clock.step + 1, 0


def _in_trainer(fault: Fault, clock: Clock, trainer: Any, setup: Setup) -> None:
    """The fault in a trainer of transformers or TRL, which makes its loop, its engine and its optimizer by itself."""
    from transformers import TrainerCallback

    class Counting(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            accelerator = trainer.accelerator
            accelerator.backward = _backward(fault, clock, accelerator.backward, trainer.model_wrapped, setup)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            _after_step(fault, clock, trainer.model_wrapped, [])

    compute_loss, create_optimizer = trainer.compute_loss, trainer.create_optimizer

    def loss(*args: Any, **kwargs: Any) -> Any:
        value = compute_loss(*args, **kwargs)
        times = _times(fault, clock, setup)
        return (value[0] * times, *value[1:]) if isinstance(value, tuple) else value * times

    def optimizer(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        return _optimizer(fault, clock, create_optimizer(*args, **kwargs))

    trainer.add_callback(Counting())
    trainer.create_optimizer = optimizer
    if fault.kind in LOSSES:
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
    if fault.kind == "mesh":
        changes.make_meshes_of(MESHES[fault.module][0])
    if fault.kind == "untied":
        head: Any = model.get_submodule(fault.module)
        head.weight = nn.Parameter(head.weight.detach().clone())
    if fault.kind == "buffer" and distributed.get_rank() == FAULTY:
        model.get_buffer(fault.module).add_(0.5)
    if fault.kind == "frozen":
        _freeze(model, fault.module)
    elif fault.kind in OF_WEIGHT:
        layer: Any = model.get_submodule(fault.module)
        if fault.kind == "start":
            with torch.no_grad():  # on every rank: FSDP may shard it so that one of them keeps nothing of it
                layer.weight.mul_(1.5)
        else:
            change = partial(_of_gradient, fault, clock)
            layer.forward = lambda x: nn.functional.linear(x, Changed.apply(layer.weight, change), layer.bias)


def _freeze(model: nn.Module, module: str) -> None:
    """Freeze the weight of a module, or those of its adapter, as a wrong pattern of names does it; without a module
    every weight."""
    weights = [(name, p) for name, p in model.named_parameters() if p.requires_grad and name.endswith(".weight")]
    frozen = [p.requires_grad_(False) for name, p in weights if not module or f".{module}." in f".{name}"]
    assert frozen, f"no weight of {module} is trained: the fault is none"


def _of_gradient(fault: Fault, clock: Clock, gradient: torch.Tensor) -> torch.Tensor:
    """What a fault makes of one weight's gradient [out, in]."""
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
    return gradient * (torch.nan if fault.kind == "nan" else 0.0)


def _in_scenario(fault: Fault, clock: Clock, built: Scenario, setup: Setup) -> Scenario:
    def loss(model: Any, batch: Any) -> torch.Tensor:
        return built.loss(model, batch) * _times(fault, clock, setup)

    def optimizer(model: Any) -> torch.optim.Optimizer:
        if fault.kind == "dead":
            return torch.optim.SGD(_copies(model.parameters()), lr=LR, momentum=MOMENTUM)
        made = (built.optimizer or sgd)(model)
        for group in made.param_groups if fault.kind == "rate" else ():
            group["lr"] *= fault.times
        return _optimizer(fault, clock, made)

    if fault.kind == "mesh":
        changed = {"zero_optimization": {**MESHES[fault.module][1]}}
        return replace(built, deepspeed=merged(built.deepspeed, changed))
    if fault.kind == "bypassed":
        return replace(built, loss=lambda model, batch: built.loss(model.module, batch))
    if fault.kind in LOSSES:
        return replace(built, loss=loss)
    if fault.kind in ROWS:
        return replace(built, batch=lambda number, rank, world_size: ROWS[fault.kind](fault, built, setup, number))
    return replace(built, optimizer=optimizer)


def _times(fault: Fault, clock: Clock, setup: Setup) -> float:
    clock.losses += 1
    return LOSSES[fault.kind](clock, setup)


def _copies(parameters: Any) -> list[torch.Tensor]:
    return [parameter.detach().clone().requires_grad_() for parameter in parameters]


def _optimizer(fault: Fault, clock: Clock, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """An optimizer that loses its momentum in the step at fault, makes no step there on one rank, or steps copies."""
    original = made.step

    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if clock.step == fault.step and fault.kind == "momentum":
            made.state.clear()
        if fault.kind == "skipped" and clock.strikes:
            return None
        live = [group["params"] for group in made.param_groups]
        for group in made.param_groups if fault.kind == "dead shards" else ():
            group["params"] = _copies(group["params"])
        answer = original(*args, **kwargs)
        for group, parameters in zip(made.param_groups, live, strict=True):
            group["params"] = parameters
        return answer

    made.step = MethodType(step, made)  # a method, as torch 2.11's schedulers need it
    return made


def _save(fault: Fault, write: Callable[[], None], folder: Path, setup: Setup) -> None:
    if fault.kind == "one saves" and setup.rank == FAULTY:
        return
    write()
    if fault.kind in CHECKPOINTS and setup.rank == 0:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        CHECKPOINTS[fault.kind](tensors)
        safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _resumed(fault: Fault, clock: Clock, wrapped: Wrapped, setup: Setup) -> None:
    clock.step += HALF
    if fault.kind in LOADED:
        engine = wrapped.model  # which has them where the loop doesn't
        scheduler = wrapped.scheduler or getattr(engine, "lr_scheduler", None)
        LOADED[fault.kind](wrapped.optimizer or engine.optimizer, scheduler)
