"""From a program to the scenario that a rank trains: its model, its rows and what its loop does with an engine."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import distributed, nn

from faultline.base.errors import Impossible
from faultline.programs import build
from faultline.programs.program import Program, parse
from faultline.programs.settings import SETTINGS
from faultline.programs.training import Training
from faultline.ranks.observer import Observer
from faultline.ranks.own_model import target
from faultline.scenario import LR, MOMENTUM, Scenario, to
from faultline.strategies import Config, Setup, Wrapped

LIMIT = {"norm": 0.1, "value": 0.01}  # which the gradients of all programs exceed
UNFROZEN_IN = 1  # the second step
SILENT = 1  # the rank whose loss is zero
HALVES = 0.25, 0.75
ADAPTER = {"r": 2, "lora_alpha": 4, "target_modules": "all-linear"}


@dataclasses.dataclass(frozen=True)
class Rows:
    """A micro-batch: whose it is, and of which step."""

    batch: build.Batch
    rank: int
    step: int


@dataclasses.dataclass
class Loop:
    """What a program's loop has from one call to the next: its teacher, and the halves of the loss."""

    training: Training
    halves: Sequence[torch.Tensor] = ()
    teacher: nn.Module | None = None


def program(text: str) -> target.Built:
    """A program as JSON, as `check` takes it."""
    return target.Built(partial(scenario, text))


def scenario(text: str, setup: Setup, world_size: int) -> Scenario:
    """What a rank trains of a program as JSON, or one process in place of `world_size` ranks."""
    made = parse(text)
    with torch.random.fork_rng(devices=[]):
        model, loss, batch = build.program(made.spec.to_json())
    training, loop = made.training, Loop(made.training)
    if training.teacher:
        loop.teacher = copy.deepcopy(model).requires_grad_(False)
    model = target.ready(model, ADAPTER if training.adapter == "lora" else {})
    observer = Observer(model)
    shares = world_size if setup.reference else 0
    by_hand = training.accumulating == "by hand" and training.accumulate > 1 and not shares
    return Scenario(
        model,
        partial(_loss, loop, loss, observer, setup),
        partial(_rows, batch, training.accumulate, world_size if shares else 0),
        checkpoint=target.checkpoint,
        observer=observer,
        deepspeed=_config(made),
        keywords=_keywords(made),
        accelerate=training.through == "accelerate" and not shares,
        micro_batches=training.accumulate * (shares or 1),
        shares=shares,
        by_hand=(lambda model, last: nullcontext()) if by_hand else None,
        optimizer=partial(_optimizer, training.optimizer),
        loop=partial(_looped, loop),
        before_step=partial(_between, training, batch, setup),
    )


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
    loss: Callable[[Any, build.Batch], torch.Tensor],
    observer: Observer,
    setup: Setup,
    model: Any,
    rows: Rows,
) -> torch.Tensor:
    training, batch = loop.training, to(rows.batch, setup.device)
    observer.share = rows.rank
    if loop.teacher is not None:
        with torch.no_grad():
            batch = {**batch, "y": batch["y"] + loop.teacher.to(setup.device)(batch["x"], batch["tokens"])}
    whole = loss(model, batch)
    if training.silent and (rows.rank, rows.step) == (SILENT, 0):
        whole = whole * 0.0
    loop.halves = [share * whole for share in HALVES] if training.backward == "halves" else []
    return whole


def _looped(loop: Loop, wrapped: Wrapped) -> Wrapped:
    """The engine with what the program's loop does in place of a backward pass and a step."""
    training = loop.training
    deepspeed = hasattr(wrapped.model, "zero_optimization_stage")
    if deepspeed and training.clip == "value":
        raise Impossible("DeepSpeed clips by the norm alone")

    def backward(loss: torch.Tensor) -> None:
        if not loop.halves:
            return wrapped.backward(loss)
        whole = float(sum(half.item() for half in loop.halves))
        scale = loss.item() / whole if whole else 1.0  # a loop that accumulates by hand has divided it
        wrapped.backward(loop.halves[0] * scale, retain_graph=True)
        return wrapped.backward(loop.halves[1] * scale)

    def step() -> None:
        if training.clip != "none" and not deepspeed:
            _clip(wrapped, training.clip)
        wrapped.step()

    if training.cleared == "zeros" and wrapped.optimizer:
        wrapped.optimizer.zero_grad = partial(wrapped.optimizer.zero_grad, set_to_none=False)
    return dataclasses.replace(wrapped, backward=backward, step=step)


def _clip(wrapped: Wrapped, how: str) -> None:
    """Clip as the documentation of the engine says."""
    parameters, limit = wrapped.model.parameters(), LIMIT[how]
    if wrapped.accelerator and how == "norm":
        wrapped.accelerator.clip_grad_norm_(parameters, limit)
    elif wrapped.accelerator:
        wrapped.accelerator.clip_grad_value_(parameters, limit)
    elif how == "value":
        nn.utils.clip_grad_value_(parameters, limit)
    elif hasattr(wrapped.model, "clip_grad_norm_"):  # FSDP1
        wrapped.model.clip_grad_norm_(limit)
    else:
        nn.utils.clip_grad_norm_(parameters, limit)


def _optimizer(kind: str, model: Any) -> torch.optim.Optimizer:
    """Of every parameter, as `target.of_all`."""
    named = [(name, parameter) for name, parameter in model.named_parameters()]
    if kind == "adamw":  # whose steps are no signs of rounding with an epsilon of this size
        return torch.optim.AdamW([parameter for _, parameter in named], lr=0.01, eps=1e-3)
    if kind == "groups":
        parts = [[p for name, p in named if name.endswith("bias") is ending] for ending in (False, True)]
        groups = [{"params": part, "lr": LR / (1 + number)} for number, part in enumerate(parts) if part]
        return torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM)
    return torch.optim.SGD([p for _, p in named], lr=LR, momentum=MOMENTUM if kind == "sgd" else 0.0)


def _between(
    training: Training, batch: Callable[[int, int, int], build.Batch], setup: Setup, model: Any, step: int
) -> None:
    """What runs in front of a step that isn't the first."""
    if not step:
        return
    if training.unfreeze and step == UNFROZEN_IN:
        for parameter in model.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.requires_grad_(True)
    if training.between == "evaluation":
        rows = to(batch(step, setup.rank, setup.world_size), setup.device)
        model.eval()
        with torch.no_grad():
            model(rows["x"], rows["tokens"])
        model.train()
    if training.between == "saving" and distributed.is_initialized():
        _save(model, setup)


def _save(model: Any, setup: Setup) -> None:
    """What the engine's users do to save in the middle of a training."""
    if hasattr(model, "save_checkpoint"):
        model.save_checkpoint(setup.folder, tag="between")
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def _keywords(program: Program) -> dict[str, dict[str, Any]]:
    """The arguments of torch's engines, by family."""
    from torch.distributed.fsdp import BackwardPrefetch

    made: dict[str, Callable[[Any], Any]] = {"fsdp1.backward_prefetch": lambda name: name and BackwardPrefetch[name]}
    keywords: dict[str, dict[str, Any]] = {}
    for key, value in program.chosen:
        if key in SETTINGS and SETTINGS[key].family != "zero":
            setting = SETTINGS[key]
            keywords.setdefault(setting.family, {})[setting.name] = made[key](value) if key in made else value
    return keywords


def _config(program: Program) -> Config:
    """What DeepSpeed's config has beside the strategy's file."""
    config: Config = {"gradient_clipping": LIMIT["norm"]} if program.training.clip == "norm" else {}
    for key, value in program.chosen:
        if key in SETTINGS and SETTINGS[key].family == "zero":
            section = config
            for name in SETTINGS[key].path:
                section = section.setdefault(name, {})
            section[SETTINGS[key].name] = value
    return config
