"""Faults seeded into runs that are healthy, and changes that only look like faults; ranks load them by name."""

import contextlib
import itertools
import math
from dataclasses import replace

import safetensors.torch
import torch

from faultline.cells.cell import HALF, STEPS
from faultline.programs.engines import held, own_results, unreduced_in_ddp
from faultline.ranks.run import Injection
from faultline.scenario import LR, MOMENTUM

FAULTY = 1  # the rank that is at fault
LAST = STEPS - 1  # one-step faults strike here: no later step makes them larger
ADAPTER = "model.layers.0.self_attn.q_proj"  # what is frozen: one projection's, as a wrong pattern of names does it


def on_loss(factor):
    """Multiply the loss by ``factor(setup, step)``."""

    def scenario(built, setup):
        steps = itertools.count()
        return replace(built, loss=lambda model, batch: built.loss(model, batch) * factor(setup, next(steps)))

    return Injection(scenario=scenario)


def on_batch(change):
    """Take ``change(built, setup, step)`` for a rank's batch."""

    def scenario(built, setup):
        return replace(built, batch=lambda step, rank, world_size: change(built, setup, step))

    return Injection(scenario=scenario)


def strikes(setup, step):
    return (setup.rank, step) == (FAULTY, LAST)


LOST_CONTRIBUTION = on_loss(lambda setup, step: 0.0 if strikes(setup, step) else 1.0)
SCALED_BY_WORLD_SIZE = on_loss(lambda setup, step: setup.world_size)
NAN_LOSS = on_loss(lambda setup, step: math.nan if strikes(setup, step) else 1.0)


def _other_order(built, setup, step):
    return built.batch(LAST - step if setup.rank == FAULTY else step, setup.rank, setup.world_size)


OTHER_ORDER = on_batch(_other_order)
SAME_ROWS = on_batch(lambda built, setup, step: built.batch(step, 0, setup.world_size))


def freeze(part):
    def model(model):
        frozen = [p.requires_grad_(False) for name, p in model.named_parameters() if part in name and p.requires_grad]
        assert frozen, f"no parameter of {part} is trained: the fault is none"

    return Injection(model=model)


FROZEN_ADAPTER = freeze(ADAPTER)
ALL_FROZEN = freeze("")


def unreduced(is_faulty):
    """Where `is_faulty(rank)`, gradients stay the rank's own at the last step.

    Under DDP a communication hook leaves the sum away. The other engines call
    collectives from Python: those of the backward pass run, so that no peer
    waits, and the rank's own values are put where their result was.
    """

    def wrapped(wrapped, setup):
        steps, at_fault = itertools.count(), []

        ddp = hasattr(wrapped.model, "register_comm_hook") and hasattr(wrapped.model, "reducer")
        if ddp:
            unreduced_in_ddp(wrapped.model, setup, lambda: bool(at_fault))

        def backward(loss):
            if next(steps) != LAST or not is_faulty(setup.rank):
                return wrapped.backward(loss)
            at_fault.append(True)
            with contextlib.nullcontext() if ddp else own_results(setup):
                return wrapped.backward(loss)

        return replace(wrapped, backward=backward)

    return Injection(wrapped=wrapped)


UNREDUCED_ON_ONE_RANK = unreduced(lambda rank: rank == FAULTY)
UNREDUCED_EVERYWHERE = unreduced(lambda rank: True)


def _around_the_wrapper(built, setup):
    """Every rank calls the model inside DDP: the mistake by which people lose the reduction."""
    return replace(built, loss=lambda model, batch: built.loss(model.module, batch))


BYPASSED_WRAPPER = Injection(scenario=_around_the_wrapper)


def after_step(change):
    """After the last step, ``change(now, before)`` alters one rank's share of the weights in place."""

    def wrapped(wrapped, setup):
        steps = itertools.count()

        def step():
            with torch.no_grad():
                before = [tensor.clone() for tensor in held(wrapped.model)]
                wrapped.step()
                if strikes(setup, next(steps)):
                    change(held(wrapped.model), before)

        return replace(wrapped, step=step)

    return Injection(wrapped=wrapped)


def _put_back(now, before):
    for tensor, old in zip(now, before, strict=True):
        tensor.copy_(old)


def _drift(now, before):
    generator = torch.Generator().manual_seed(3)
    for tensor in now:
        tensor.mul_(1 + 1e-5 * torch.randn(tensor.shape, generator=generator))


def _turn_one_bit(now, before):
    first = now[0].view(-1)[:1]
    first.copy_(torch.nextafter(first, torch.full_like(first, math.inf)))


def _spoil(now, before):
    max(now, key=torch.numel).view(-1)[0] = math.nan


STALE_WEIGHTS = after_step(_put_back)
DRIFT = after_step(_drift)
ONE_BIT = after_step(_turn_one_bit)
NAN_WEIGHT = after_step(_spoil)


def _stale_shard(wrapped, setup):
    """The optimizer inside ZeRO does not move one rank's shard at the last step; all ranks get it as it was."""
    inner = wrapped.model.optimizer.optimizer
    steps, at_fault, original = itertools.count(), [], inner.step

    def inner_step(*args, **kwargs):
        shards = [shard for group in inner.param_groups for shard in group["params"]]
        before = [shard.detach().clone() for shard in shards]
        original(*args, **kwargs)
        if at_fault:
            with torch.no_grad():
                _put_back(shards, before)

    def step():
        if strikes(setup, next(steps)):
            at_fault.append(True)
        wrapped.step()

    inner.step = inner_step
    return replace(wrapped, step=step)


STALE_SHARD = Injection(wrapped=_stale_shard)


def _lost_in_trainer(model):
    """One rank's gradient is zero at the last step, from the last hidden state down: the loss is out of reach."""
    calls = itertools.count()

    def forward(module, args, output):
        if (torch.distributed.get_rank(), next(calls)) == (FAULTY, LAST):
            output.register_hook(torch.zeros_like)

    (norm,) = [module for name, module in model.named_modules() if name.endswith("model.norm")]
    norm.register_forward_hook(forward)


LOST_IN_TRAINER = Injection(model=_lost_in_trainer)


def _interleaved(built, setup, step):
    """Rows 0 and 2 on one rank and 1 and 3 on the other, as samplers deal them: the same global batch."""
    whole = built.batch(step, 0, 1)
    rows = slice(setup.rank, None, setup.world_size)
    return {key: value[rows] if torch.is_tensor(value) else value * setup.world_size for key, value in whole.items()}


# Changes that are none: another order of summation, and an error far below what a lost row makes.
INTERLEAVED_ROWS = on_batch(_interleaved)
SLIGHTLY_OFF = on_loss(lambda setup, step: 1 + 1e-6 * (-1) ** (setup.rank + step))


# An accumulation step lost: the first micro-batch of the last step, of two in each, brings nothing.
LOST_MICRO_BATCH = on_loss(lambda setup, number: 0.0 if number == 2 * LAST else 1.0)


def _own_tokens(built, setup, step):
    """The rows of a batch, and how many tokens of them are trained on."""
    batch = built.batch(step, setup.rank, setup.world_size)
    return batch, int((batch["labels"][:, 1:] != -100).sum())


def _own_token_mean(built, setup, step):
    """Each rank takes the mean over its own tokens, which are not as many as its peers'."""
    batch, tokens = _own_tokens(built, setup, step)
    return {**batch, "scale": 1 / tokens}


def _own_count(built, setup, number):
    """Each micro-batch of a rank is divided by its own tokens, by a loss that divides by `num_items` of the step."""
    batch, tokens = _own_tokens(built, setup, number)
    return {**batch, "num_items": tokens * setup.world_size * built.micro_batches}


WRONG_TOKEN_WEIGHT = on_batch(_own_token_mean)
WRONG_COUNT = on_batch(_own_count)


def on_saved(change):
    """Let ``change(tensors)`` alter what is in a checkpoint's `model.safetensors`."""

    def save(write, folder, setup):
        write()
        if setup.rank == 0:
            tensors = safetensors.torch.load_file(folder / "model.safetensors")
            change(tensors)
            safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return Injection(save=save)


SAVED = "model.layers.0.mlp.up_proj.weight"
MISSING_TENSOR = on_saved(lambda tensors: tensors.pop(SAVED))
EMPTY_TENSOR = on_saved(lambda tensors: tensors.update({SAVED: torch.empty(0)}))
STALE_TENSOR = on_saved(lambda tensors: tensors[SAVED].mul_(1 + 1e-5))


def _one_rank_saves(write, folder, setup):
    """The faulty rank goes on with training while its peers save."""
    if setup.rank != FAULTY:
        write()


ONE_RANK_SAVES = Injection(save=_one_rank_saves)


def dead(parameters):
    return [parameter.detach().clone().requires_grad_() for parameter in parameters]


def _dead_parameters(built, setup):
    """The optimizer is given copies of the parameters, as one that was made too early holds them."""

    def optimizer(model):
        return torch.optim.SGD(dead(model.parameters()), lr=LR, momentum=MOMENTUM)

    return replace(built, optimizer=optimizer)


def _dead_shards(wrapped, setup):
    """The optimizer inside ZeRO, which hands it its shards anew for each step, steps copies of them."""
    inner = wrapped.model.optimizer.optimizer
    original = inner.step

    def step(*args, **kwargs):
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


def on_resuming(spoil):
    """Spoil what a rank has just loaded, with ``spoil(optimizer, scheduler, setup)``."""

    def resumed(wrapped, setup):
        engine = wrapped.model  # which has them where the loop doesn't
        spoil(wrapped.optimizer or engine.optimizer, wrapped.scheduler or getattr(engine, "lr_scheduler", None), setup)

    return Injection(resumed=resumed)


def _no_momentum(optimizer, scheduler, setup):
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


def _first_rate(optimizer, scheduler, setup):
    scheduler.last_epoch = 0
    for group, rate in zip(optimizer.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = rate


def _loaded_twice(optimizer, scheduler, setup):
    """What was loaded, in new tensors; and a random number whose drawing is undone."""
    for state in optimizer.state.values():
        state["momentum_buffer"] = state["momentum_buffer"].clone()
    scheduler.load_state_dict(scheduler.state_dict())
    before = torch.get_rng_state()
    torch.rand(1)
    torch.set_rng_state(before)


LOADED_TWICE = on_resuming(_loaded_twice)
MOMENTUM_LOST = on_resuming(_no_momentum)
SCHEDULE_RESTARTED = on_resuming(_first_rate)
RANDOM_STATE_OF_ONE_RANK = on_resuming(lambda optimizer, scheduler, setup: torch.manual_seed(1000))
DATA_FROM_THE_START = on_batch(lambda built, setup, step: built.batch(step % HALF, setup.rank, setup.world_size))
