"""What a program's loop does in a step and between two: its optimizer, its backward passes, clipping, checkpoints."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from faultline import strategies
from faultline.base.errors import Impossible
from faultline.scenario import LR, MOMENTUM, to
from faultline.strategies import Setup, Wrapped
from lab.programs import build
from lab.programs.training import LIMIT, Training

CHANGED_IN = 1  # the second step, which unfreezes
HALVES = 0.25, 0.75
WITHOUT_GRADIENTS = {"evaluation": torch.no_grad, "inference": torch.inference_mode}


@dataclasses.dataclass
class Loop:
    """What a program's loop has from one call to the next: its engine, its teacher, and the halves of the loss.

    `logged` are the norms of gradients that the engine gives, as a loop logs them.
    """

    training: Training
    wrapped: Wrapped | None = None
    halves: Sequence[torch.Tensor] = ()
    teacher: Any = None
    logged: list[float] = dataclasses.field(default_factory=list)


def looped(loop: Loop, wrapped: Wrapped) -> Wrapped:
    """The engine with what the program's loop does in place of a backward pass and a step."""
    training = loop.training
    deepspeed = hasattr(wrapped.model, "zero_optimization_stage")
    if deepspeed and training.clip == "value":
        raise Impossible("DeepSpeed clips by the norm alone")
    if deepspeed and training.optimizer == "two":
        raise Impossible("DeepSpeed steps one optimizer")

    def backward(loss: torch.Tensor) -> None:
        if not loop.halves:
            return wrapped.backward(loss)
        whole = float(sum(half.item() for half in loop.halves))
        scale = loss.item() / whole if whole else 1.0  # a loop that accumulates by hand has divided it
        wrapped.backward(loop.halves[0] * scale, retain_graph=True)
        return wrapped.backward(loop.halves[1] * scale)

    def step() -> None:
        norm = _clip(wrapped, training.clip) if training.clip != "none" and not deepspeed else None
        wrapped.step()
        if deepspeed and training.clip == "norm":
            norm = wrapped.model.get_global_grad_norm()
        if norm is not None:
            loop.logged.append(float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm))

    if training.cleared == "zeros" and wrapped.optimizer:
        wrapped.optimizer.zero_grad = partial(wrapped.optimizer.zero_grad, set_to_none=False)
    loop.wrapped = dataclasses.replace(wrapped, backward=backward, step=step)
    if deepspeed:  # which makes an optimizer of its own around that of the loop
        loop.wrapped = dataclasses.replace(loop.wrapped, optimizer=wrapped.model.optimizer)
    return loop.wrapped


def _clip(wrapped: Wrapped, how: str) -> Any:
    """Clip as the documentation of the engine says; gives the norm that was clipped by."""
    parameters, limit = wrapped.model.parameters(), LIMIT[how]
    if wrapped.accelerator and how == "norm":
        return wrapped.accelerator.clip_grad_norm_(parameters, limit)
    if wrapped.accelerator:
        return wrapped.accelerator.clip_grad_value_(parameters, limit)
    if how == "value":
        return nn.utils.clip_grad_value_(parameters, limit)
    if hasattr(wrapped.model, "clip_grad_norm_"):  # FSDP1
        return wrapped.model.clip_grad_norm_(limit)
    return nn.utils.clip_grad_norm_(parameters, limit)


def optimizer(kind: str, model: Any) -> torch.optim.Optimizer:
    """Of every parameter, as `target.of_all`."""
    named = [(name, parameter) for name, parameter in model.named_parameters()]
    if kind == "adamw":  # whose steps are no signs of rounding with an epsilon of this size
        return torch.optim.AdamW([parameter for _, parameter in named], lr=0.01, eps=1e-3)
    if kind == "adafactor":
        return torch.optim.Adafactor([parameter for _, parameter in named], lr=0.01)
    parts = [[p for name, p in named if name.endswith("bias") is ending] for ending in (False, True)]
    if kind == "two":
        return _two(*parts)
    if kind == "groups":
        groups = [{"params": part, "lr": LR / (1 + number)} for number, part in enumerate(parts) if part]
        return torch.optim.SGD(groups, lr=LR, momentum=MOMENTUM)
    return torch.optim.SGD([p for _, p in named], lr=LR, momentum=MOMENTUM if kind == "sgd" else 0.0)


def _two(weights: Sequence[Any], biases: Sequence[Any]) -> torch.optim.Optimizer:
    """An optimizer of weights, which steps that of the biases too, as a loop does that has Muon beside AdamW."""
    one, other = torch.optim.SGD(weights, lr=LR, momentum=MOMENTUM), torch.optim.AdamW(biases, lr=0.01, eps=1e-3)
    step, zero_grad = one.step, one.zero_grad

    def both(name: str, of_one: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        of_one(*args, **kwargs)
        getattr(other, name)(*args, **kwargs)

    one.step = partial(both, "step", step)
    one.zero_grad = partial(both, "zero_grad", zero_grad)
    return one


def cast(batch: build.Batch, setup: Setup) -> build.Batch:
    """A batch as a loop hands it to an engine: DeepSpeed makes the model bf16, and leaves its inputs as they are."""
    half = setup.precision == "bf16" and strategies.family_name(setup.strategy) == "zero"
    return {**batch, "x": batch["x"].bfloat16()} if half else batch


def between(loop: Loop, batch: Callable[[int, int, int], build.Batch], setup: Setup, model: Any, step: int) -> None:
    """What runs in front of a step; before the first one, weights may be loaded."""
    training = loop.training
    if not step:
        if training.begins == "loaded":
            _load(model)
        return
    if training.unfreeze and step == CHANGED_IN:
        for parameter in model.parameters():
            if parameter.is_floating_point() or parameter.is_complex():
                parameter.requires_grad_(True)
    if training.schedule == "halving" and loop.wrapped:
        for group in loop.wrapped.optimizer.param_groups:
            group["lr"] /= 2
    if training.between in WITHOUT_GRADIENTS:
        rows = cast(to(batch(step, setup.data_rank, setup.data_world), setup.device), setup)
        model.eval()
        with WITHOUT_GRADIENTS[training.between]():
            model(rows["x"], rows["tokens"])
        model.train()
    if training.between == "saving" and distributed.is_initialized():
        _save(model, setup)
    if training.between == "reloading" and distributed.is_initialized() and loop.wrapped:
        _reload(loop.wrapped, setup)


def _load(model: Any) -> None:
    """Other weights into the model inside of the wrapper, as a loop loads a checkpoint there."""
    if hasattr(model, "_fsdp_wrapped_module") or any(
        hasattr(p, "ds_id") or hasattr(p, "placements") for p in model.parameters()
    ):
        raise Impossible("a shard takes no whole weights")
    inside = getattr(model, "module", model)
    floating = {name: 1.5 * each for name, each in inside.state_dict().items() if each.is_floating_point()}
    inside.load_state_dict(floating, strict=False)


def _save(model: Any, setup: Setup) -> None:
    """What the engine's users do to save in the middle of a training."""
    if hasattr(model, "save_checkpoint"):
        model.save_checkpoint(setup.folder, tag="between")
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def _reload(wrapped: Wrapped, setup: Setup) -> None:
    """Save model and optimizer, and load them again: nothing is to change."""
    folder = Path(setup.folder) / "between"
    folder.mkdir(exist_ok=True)
    if wrapped.accelerator:
        wrapped.accelerator.save_state(str(folder))
        wrapped.accelerator.wait_for_everyone()
        wrapped.accelerator.load_state(str(folder))
        return
    family = strategies.family(setup.strategy)
    family.save(wrapped, folder)
    distributed.barrier()
    family.load(wrapped, folder)
    distributed.barrier()
