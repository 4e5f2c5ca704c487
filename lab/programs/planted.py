"""Faults seeded into training of the matrix, and changes that only look like faults; ranks load them by name."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from faultline.cells.cell import HALF, STEPS
from faultline.ranks.run import Injection
from faultline.scenario import LR, MOMENTUM, Scenario
from faultline.strategies import Setup, Wrapped
from lab.programs.engines import held, own_results, unreduced_in_ddp
from lab.programs.fault import FAULTY

Weights = list[torch.Tensor]

LAST = STEPS - 1  # one-step faults strike here: no later step makes them larger
ADAPTER = "model.layers.0.self_attn.q_proj"  # what is frozen: one projection's, as a wrong pattern of names does it


def on_loss(factor: Callable[[Setup, int], float]) -> Injection:
    """Multiply the loss by ``factor(setup, step)``."""

    def scenario(built: Scenario, setup: Setup) -> Scenario:
        steps = itertools.count()
        return replace(built, loss=lambda model, batch: built.loss(model, batch) * factor(setup, next(steps)))

    return Injection(scenario=scenario)


def on_batch(change: Callable[[Scenario, Setup, int], Any]) -> Injection:
    """Take ``change(built, setup, step)`` for a rank's batch."""

    def scenario(built: Scenario, setup: Setup) -> Scenario:
        return replace(built, batch=lambda step, rank, world_size: change(built, setup, step))

    return Injection(scenario=scenario)


def strikes(setup: Setup, step: int) -> bool:
    return (setup.rank, step) == (FAULTY, LAST)


LOST_CONTRIBUTION = on_loss(lambda setup, step: 0.0 if strikes(setup, step) else 1.0)
SCALED_BY_WORLD_SIZE = on_loss(lambda setup, step: setup.data_world)
NAN_LOSS = on_loss(lambda setup, step: math.nan if strikes(setup, step) else 1.0)


def _other_order(built: Scenario, setup: Setup, step: int) -> Any:
    return built.batch(LAST - step if setup.rank == FAULTY else step, setup.data_rank, setup.data_world)


OTHER_ORDER = on_batch(_other_order)
SAME_ROWS = on_batch(lambda built, setup, step: built.batch(step, 0, setup.data_world))


def freeze(part: str) -> Injection:
    def model(model: Any) -> None:
        frozen = [p.requires_grad_(False) for name, p in model.named_parameters() if part in name and p.requires_grad]
        assert frozen, f"no parameter of {part} is trained: the fault is none"

    return Injection(model=model)


FROZEN_ADAPTER = freeze(ADAPTER)
ALL_FROZEN = freeze("")


def unreduced(is_faulty: Callable[[int], bool]) -> Injection:
    """Where `is_faulty(rank)`, gradients stay the rank's own at the last step.

    Under DDP a communication hook leaves the sum away. The other engines call
    collectives from Python: those of the backward pass run, so that no peer
    waits, and the rank's own values are put where their result was.
    """

    def wrapped(wrapped: Wrapped, setup: Setup) -> Wrapped:
        steps, at_fault = itertools.count(), list[bool]()
        ddp = hasattr(wrapped.model, "register_comm_hook") and hasattr(wrapped.model, "reducer")
        if ddp:
            unreduced_in_ddp(wrapped.model, setup, lambda: bool(at_fault))

        def backward(loss: Any) -> None:
            if next(steps) != LAST or not is_faulty(setup.rank):
                return wrapped.backward(loss)
            at_fault.append(True)
            with contextlib.nullcontext() if ddp else own_results(setup):
                return wrapped.backward(loss)

        return replace(wrapped, backward=backward)

    return Injection(wrapped=wrapped)


UNREDUCED_ON_ONE_RANK = unreduced(lambda rank: rank == FAULTY)
UNREDUCED_EVERYWHERE = unreduced(lambda rank: True)


def _around_the_wrapper(built: Scenario, setup: Setup) -> Scenario:
    """Every rank calls the model inside DDP: the mistake by which people lose the reduction."""
    return replace(built, loss=lambda model, batch: built.loss(model.module, batch))


BYPASSED_WRAPPER = Injection(scenario=_around_the_wrapper)


def after_step(change: Callable[[Weights, Weights], None]) -> Injection:
    """After the last step, ``change(now, before)`` alters one rank's share of the weights in place."""

    def wrapped(wrapped: Wrapped, setup: Setup) -> Wrapped:
        steps = itertools.count()

        def step() -> None:
            with torch.no_grad():
                before = [tensor.clone() for tensor in held(wrapped.model)]
                wrapped.step()
                if strikes(setup, next(steps)):
                    change(held(wrapped.model), before)

        return replace(wrapped, step=step)

    return Injection(wrapped=wrapped)


def _put_back(now: Weights, before: Weights) -> None:
    for tensor, old in zip(now, before, strict=True):
        tensor.copy_(old)


def _drift(now: Weights, before: Weights) -> None:
    generator = torch.Generator().manual_seed(3)
    for tensor in now:
        tensor.mul_(1 + 1e-5 * torch.randn(tensor.shape, generator=generator))


def _turn_one_bit(now: Weights, before: Weights) -> None:
    first = now[0].view(-1)[:1]
    first.copy_(torch.nextafter(first, torch.full_like(first, math.inf)))


def _spoil(now: Weights, before: Weights) -> None:
    max(now, key=torch.numel).view(-1)[0] = math.nan


STALE_WEIGHTS = after_step(_put_back)
DRIFT = after_step(_drift)
ONE_BIT = after_step(_turn_one_bit)
NAN_WEIGHT = after_step(_spoil)


def _stale_shard(wrapped: Wrapped, setup: Setup) -> Wrapped:
    """The optimizer inside ZeRO does not move one rank's shard at the last step; all ranks get it as it was."""
    inner = wrapped.model.optimizer.optimizer
    steps, at_fault, original = itertools.count(), list[bool](), inner.step

    def inner_step(*args: Any, **kwargs: Any) -> None:
        shards = [shard for group in inner.param_groups for shard in group["params"]]
        before = [shard.detach().clone() for shard in shards]
        original(*args, **kwargs)
        if at_fault:
            with torch.no_grad():
                _put_back(shards, before)

    def step() -> None:
        if strikes(setup, next(steps)):
            at_fault.append(True)
        wrapped.step()

    inner.step = inner_step
    return replace(wrapped, step=step)


STALE_SHARD = Injection(wrapped=_stale_shard)


def _lost_in_trainer(model: Any) -> None:
    """One rank's gradient is zero at the last step, from the last hidden state down: the loss is out of reach."""
    calls = itertools.count()

    def forward(module: Any, args: Any, output: Any) -> None:
        if (torch.distributed.get_rank(), next(calls)) == (FAULTY, LAST):
            output.register_hook(torch.zeros_like)

    (norm,) = [module for name, module in model.named_modules() if name.endswith("model.norm")]
    norm.register_forward_hook(forward)


LOST_IN_TRAINER = Injection(model=_lost_in_trainer)


def _interleaved(built: Scenario, setup: Setup, step: int) -> Any:
    """Rows 0 and 2 on one rank and 1 and 3 on the other, as samplers deal them: the same global batch."""
    whole = built.batch(step, 0, 1)
    rows = slice(setup.data_rank, None, setup.data_world)
    return {key: value[rows] if torch.is_tensor(value) else value * setup.data_world for key, value in whole.items()}


# Changes that are none: another order of summation, and an error far below what a lost row makes.
INTERLEAVED_ROWS = on_batch(_interleaved)
SLIGHTLY_OFF = on_loss(lambda setup, step: 1 + 1e-6 * (-1) ** (setup.rank + step))


# An accumulation step lost: the first micro-batch of the last step, of two in each, brings nothing.
LOST_MICRO_BATCH = on_loss(lambda setup, number: 0.0 if number == 2 * LAST else 1.0)


def _own_tokens(built: Scenario, setup: Setup, step: int) -> tuple[dict[str, Any], int]:
    """The rows of a batch, and how many tokens of them are trained on."""
    batch = built.batch(step, setup.data_rank, setup.data_world)
    return batch, int((batch["labels"][:, 1:] != -100).sum())


def _own_token_mean(built: Scenario, setup: Setup, step: int) -> Any:
    """Each rank takes the mean over its own tokens, which are not as many as its peers'."""
    batch, tokens = _own_tokens(built, setup, step)
    return {**batch, "scale": 1 / tokens}


def _own_count(built: Scenario, setup: Setup, number: int) -> Any:
    """Each micro-batch of a rank is divided by its own tokens, by a loss that divides by `num_items` of the step."""
    batch, tokens = _own_tokens(built, setup, number)
    return {**batch, "num_items": tokens * setup.data_world * built.micro_batches}


WRONG_TOKEN_WEIGHT = on_batch(_own_token_mean)
WRONG_COUNT = on_batch(_own_count)


def dead(parameters: Iterable[torch.Tensor]) -> Weights:
    return [parameter.detach().clone().requires_grad_() for parameter in parameters]


def _dead_parameters(built: Scenario, setup: Setup) -> Scenario:
    """The optimizer is given copies of the parameters, as one that was made too early holds them."""

    def optimizer(model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(dead(model.parameters()), lr=LR, momentum=MOMENTUM)

    return replace(built, optimizer=optimizer)


def _dead_shards(wrapped: Wrapped, setup: Setup) -> Wrapped:
    """The optimizer inside ZeRO, which hands it its shards anew for each step, steps copies of them."""
    inner = wrapped.model.optimizer.optimizer
    original = inner.step

    def step(*args: Any, **kwargs: Any) -> None:
        live = [group["params"] for group in inner.param_groups]
        for group in inner.param_groups:
            group["params"] = dead(group["params"])
        original(*args, **kwargs)
        for group, shards in zip(inner.param_groups, live, strict=True):
            group["params"] = shards

    inner.step = step
    return wrapped


DEAD_PARAMETERS = Injection(scenario=_dead_parameters)
DEAD_SHARDS = Injection(wrapped=_dead_shards)


# Rows of a life that is resumed as if it had just begun.
DATA_FROM_THE_START = on_batch(lambda built, setup, step: built.batch(step % HALF, setup.data_rank, setup.data_world))
