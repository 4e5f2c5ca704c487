"""From a program to the scenario that a rank trains: its model, its rows and what its loop does with an engine."""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from faultline import strategies
from faultline.base.errors import Impossible
from faultline.ranks.observer import Observer
from faultline.ranks.own_model import target
from faultline.scenario import Scenario, my_rows, to
from faultline.strategies import Setup
from lab.programs import build, steps
from lab.programs.parts import TiedByHand
from lab.programs.program import Program, parse
from lab.programs.settings import ACCELERATE, SETTINGS
from lab.programs.steps import Loop
from tiny_models.second import prepared_as_by_trl

RANKS = 2  # by whose rows those of a step are drawn
Rank = Callable[[int, int, int], build.Batch]
OTHER_WEIGHTS = 1000  # further on is the seed of those that another rank builds
MOST = 4  # ranks
SILENT = 1  # the rank whose loss is zero
ADAPTER = {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"}


@dataclasses.dataclass(frozen=True)
class Rows:
    """A micro-batch: whose it is, and of which step."""

    batch: build.Batch
    rank: int
    step: int


def scenario(text: str, setup: Setup, world_size: int) -> Scenario:
    """What a rank trains of a program as JSON, or one process in place of `world_size` ranks."""
    made = program_for(text, setup)
    training, loop = made.training, Loop(made.training)
    inside, loss, batch = built(made, setup.rank if training.begins == "by rank" and not setup.reference else 0)
    if training.teacher != "none":
        loop.teacher = copy.deepcopy(inside).requires_grad_(False)
    recomputed(inside, training.recompute)
    model = target.ready(inside, ADAPTER if training.adapter == "lora" else {})
    observer = Observer(model)
    observer.logged = loop.logged
    shares = world_size if setup.reference else 0
    by_hand = training.accumulating == "by hand" and training.accumulate > 1 and not shares
    prepared = training.teacher == "prepared" and not shares
    return Scenario(
        model,
        partial(_loss, loop, inside, loss, observer, setup),
        partial(_rows, batch, training.accumulate, world_size if shares else 0),
        checkpoint=target.checkpoint,
        observer=observer,
        deepspeed=made.deepspeed,
        keywords=_keywords(made),
        accelerate=training.through == "accelerate" and not shares,
        second=partial(_prepared, loop) if prepared else None,
        micro_batches=training.accumulate * (shares or 1),
        shares=shares,
        by_hand=(lambda model, last: nullcontext()) if by_hand else None,
        optimizer=partial(steps.optimizer, training.optimizer),
        loop=partial(steps.looped, loop),
        before_step=partial(steps.between, loop, batch, setup),
    )


def program_for(text: str, setup: Setup) -> Program:
    """The program of a JSON text, without settings that the rank's strategy doesn't take."""
    made, name = parse(text), setup.strategy
    return made.under(strategies.family_name(name), name) if name else made


def built(made: Program, other: int = 0) -> build.Program:
    """A program's model, loss and rows, which are the same however many ranks share them.

    With any `other` number, the weights are drawn anew.
    """
    with torch.random.fork_rng(devices=[]):
        model, loss, batch = build.program(made.spec.to_json())
        if other:
            seed = made.seed + OTHER_WEIGHTS * other
            model, _, _ = build.program(dataclasses.replace(made.spec, seed=seed).to_json())
    training = made.training
    if training.spare_frozen:
        model.spare.requires_grad_(False)
    if training.tying == "by hand":
        model.head = TiedByHand(model.embed, model.head.bias)
    if training.life == "resized" or training.world_size != RANKS:
        batch = partial(_part, batch)
    if training.swapped:
        batch = partial(_swapped, batch)
    return (model, loss, partial(_joined, batch, training.joined) if training.joined > 1 else batch)


def _part(batch: Rank, number: int, rank: int, world: int) -> build.Batch:
    """A rank's part of the rows that two ranks have."""
    rows = _together([batch(number, each, RANKS) for each in range(RANKS)])
    return {name: my_rows(tensor, rank, world) for name, tensor in rows.items()}


def _swapped(batch: Rank, number: int, rank: int, world: int) -> build.Batch:
    return batch(number, world - 1 - rank, world)


def _joined(batch: Rank, count: int, number: int, rank: int, world: int) -> build.Batch:
    return _together([batch(number * count + each, rank, world) for each in range(count)])


def _together(batches: list[build.Batch]) -> build.Batch:
    return {name: torch.cat([each[name] for each in batches]) for name in batches[0]}


def recomputed(model: build.Model, which: str) -> None:
    """Checkpoint blocks from outside of the model, as `apply_activation_checkpointing` does."""
    blocks = [*dict.fromkeys(model.in_order())]
    for block in {"nothing": [], "last block": blocks[-1:], "every block": blocks}[which]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]


def _prepared(loop: Loop, accelerator: Any) -> Any:
    if accelerator.distributed_type.value == "DEEPSPEED":
        raise Impossible("TRL prepares models of transformers alone for DeepSpeed")
    loop.teacher = prepared_as_by_trl(accelerator, loop.teacher)
    return loop.teacher


def _rows(
    batch: Callable[[int, int, int], build.Batch], each: int, ranks: int, number: int, rank: int, world: int
) -> Rows:
    """A rank's micro-batch; in one process, those of one rank after the other (`ranks` of them in a step)."""
    if ranks:
        step, place = divmod(number, ranks * each)
        (rank, micro), world = divmod(place, each), ranks
    else:
        step, micro = divmod(number, each)
    return Rows(batch(step * each + micro, rank, world), rank, step)


def _loss(
    loop: Loop,
    inside: build.Model,
    loss: Callable[[Any, build.Batch], torch.Tensor],
    observer: Observer,
    setup: Setup,
    model: Any,
    rows: Rows,
) -> torch.Tensor:
    training, batch = loop.training, steps.cast(to(rows.batch, setup.device), setup)
    observer.share = rows.rank
    inside.spare_runs = {"never": False, "at first": rows.step == 0, "later": rows.step > 0}[training.spare_runs]
    if loop.teacher is not None:
        with torch.no_grad():
            batch = {**batch, "y": batch["y"] + loop.teacher.to(setup.device)(batch["x"], batch["tokens"])}
    whole = loss(getattr(model, "module", model) if training.around else model, batch)
    if training.silent and (rows.rank, rows.step) == (SILENT, 0):
        whole = whole * 0.0
    if training.scaled:
        whole = 2.0 * whole
    loop.halves = [share * whole for share in steps.HALVES] if training.backward == "halves" else []
    return whole


def _keywords(program: Program) -> dict[str, dict[str, Any]]:
    """Arguments of torch's engines and accelerate, by family; raises Impossible where a release has no such one."""
    from accelerate.utils import GradientAccumulationPlugin
    from torch.distributed.fsdp import (
        BackwardPrefetch,
        CPUOffloadPolicy,
        FullyShardedDataParallel,
        fully_shard,
    )
    from torch.distributed.tensor import Shard
    from torch.nn.parallel import DistributedDataParallel

    engines = {
        "ddp": DistributedDataParallel,
        "fsdp1": FullyShardedDataParallel,
        "fsdp2": fully_shard,
        ACCELERATE: GradientAccumulationPlugin,
    }
    made: dict[str, Callable[[Any], Any]] = {
        "fsdp1.backward_prefetch": lambda name: name and BackwardPrefetch[name],
        "fsdp2.offload_policy": lambda name: CPUOffloadPolicy(pin_memory=False),
        "fsdp2.shard_placement_fn": lambda name: (
            lambda weight: Shard(0 if weight.shape[-1] % MOST else weight.ndim - 1)
        ),
    }
    keywords: dict[str, dict[str, Any]] = {}
    for key, value in program.chosen:
        if key in SETTINGS and (family := SETTINGS[key].family) in engines:
            name = SETTINGS[key].name
            if name not in inspect.signature(engines[family]).parameters:
                raise Impossible(f"this release has no argument {name} for {family}")
            keywords.setdefault(family, {})[name] = made[key](value) if key in made else value
    return keywords
