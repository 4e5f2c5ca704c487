"""A second model, which is only read: how TRL's trainers prepare it."""

from __future__ import annotations

from typing import Any


def prepared_as_by_trl(accelerator: Any, model: Any) -> Any:
    """The model as TRL's trainers prepare it: in shards if that is asked for, and in evaluation mode."""
    from trl.models.utils import prepare_deepspeed, prepare_fsdp

    kind = accelerator.distributed_type.value
    if kind == "FSDP":
        return prepare_fsdp(model, accelerator)
    if kind == "DEEPSPEED":
        return prepare_deepspeed(model, accelerator)
    return accelerator.prepare_model(model, evaluation_mode=True)
