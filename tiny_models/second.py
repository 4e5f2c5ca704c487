"""A second model, which is only read: how TRL's trainers prepare it, and what a policy has to do with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from faultline.base.errors import CheckFailed
from faultline.scenario import TokenBatch, divergence, next_token_loss
from tiny_models.data import saved, wait
from tiny_models.qwen2 import add_lora, qwen2


def prepared_as_by_trl(accelerator: Any, model: Any) -> Any:
    """The model as TRL's trainers prepare it: in shards if that is asked for, and in evaluation mode."""
    from trl.models.utils import prepare_deepspeed, prepare_fsdp

    kind = accelerator.distributed_type.value
    if kind == "FSDP":
        return prepare_fsdp(model, accelerator)
    if kind == "DEEPSPEED":
        return prepare_deepspeed(model, accelerator)
    return accelerator.prepare_model(model, evaluation_mode=True)


def second_model(prepare: Callable[[Any], Any]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Where `near` finds the model that `prepare` makes of an accelerator, and what a scenario calls to make it."""
    prepared: dict[str, Any] = {}

    def second(accelerator: Any) -> Any:
        prepared["second"] = prepare(accelerator)
        return prepared["second"]

    return prepared, second


def near(prepared: dict[str, Any], of_its_own: bool = True) -> Callable[..., Any]:
    """A loss that keeps a model near the second one in `prepared`, beside a loss `of_its_own`, or without one."""

    def loss(model: Any, batch: TokenBatch) -> torch.Tensor:
        logits = model(input_ids=batch["input_ids"]).logits
        with torch.no_grad():
            wanted = prepared["second"](input_ids=batch["input_ids"]).logits
        apart = divergence(logits, wanted, batch)
        return next_token_loss(logits, batch) + apart if of_its_own else apart

    return loss


def with_saved_adapter(setup: Any, name: str = "default") -> Any:
    """A policy whose adapter was trained before, and is loaded from a folder to be trained on."""
    from peft import PeftModel

    base, folder = saved(qwen2(), setup), Path(setup.folder) / "adapter"
    if setup.rank == 0:
        add_lora(qwen2()).save_pretrained(folder)
    wait()
    return PeftModel.from_pretrained(base, folder, adapter_name=name, is_trainable=True)


def first_loss_is_ln_2(compute_loss: Callable[..., Any]) -> Callable[..., Any]:
    """The check that people recommend: policy and reference are equal in the first step."""
    losses: list[float] = []

    def checked(*args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        losses.append(float(loss.detach()))
        if abs(losses[0] - math.log(2)) > 1e-3:
            raise CheckFailed(f"the first loss is {losses[0]:.4f}, not ln 2")
        return loss

    return checked
