"""One process and no distribution: where a failure can be told from one of the strategies."""

from __future__ import annotations

from typing import Any

from faultline.strategies import Setup, Wrapped
from faultline.strategies.shared import nbytes, plain_backward, plain_step, whole_gradients, whole_parameters

ORDER = 0
PACKAGE = "torch"
DISTRIBUTED = False
USUAL = ("single",)
STRATEGIES: dict[str, dict[str, Any]] = {"single": {}}


def wrap(model: Any, optimizer: Any, options: dict[str, Any], setup: Setup) -> Wrapped:
    return Wrapped(model, plain_backward(setup.micro_batches), plain_step(optimizer(model)))


def arguments(options: dict[str, Any], setup: Setup) -> dict[str, Any]:
    return {}


def accelerate(options: dict[str, Any], setup: Setup) -> dict[str, Any]:
    return {}


parameters, gradients = whole_parameters, whole_gradients


def evidence(model: Any) -> dict[str, Any]:
    held = nbytes(model.parameters())
    return {"wrapper": type(model).__name__, "bytes_held": held, "bytes_whole": held}


def prepared(options: dict[str, Any]) -> dict[str, Any]:
    return {"distributed_type": "NO"}


def doubts(options: dict[str, Any], found: dict[str, Any]) -> list[str]:
    wrappers = ("DataParallel", "DistributedDataParallel", "DeepSpeedEngine", "FullyShardedDataParallel")
    wrapped = found["wrapper"] in wrappers or found["wrapper"].startswith("FSDP")  # FSDP2 renames the class
    return [f"the model is wrapped in {found['wrapper']}"] if wrapped else []
