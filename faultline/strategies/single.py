"""One process and no distribution: where a failure can be distinguished from one of the strategies."""

from typing import Any

from faultline.strategies import Evidence, Setup, Wrapped
from faultline.strategies.shared import (
    load_whole,
    nbytes,
    plain_backward,
    save_whole,
    stepped,
    whole_gradients,
    whole_parameters,
)

ORDER = 0
DISTRIBUTED = False
USUAL = ("single",)
PRESETS = {"single_gpu": ("single",)}
STRATEGIES = {"single": None}


def wrap(model: Any, optimizer: Any, options: None, setup: Setup) -> Wrapped:
    return Wrapped(model, plain_backward(setup.micro_batches), **stepped(optimizer(model), setup))


def arguments(options: None, setup: Setup) -> dict[str, object]:
    return {}


def accelerate(options: None, setup: Setup) -> dict[str, object]:
    return {}


save, load = save_whole, load_whole
parameters = whole_parameters
gradients = whole_gradients


def evidence(model: Any) -> dict[str, object]:
    held = nbytes(model.parameters())
    return {"wrapper": type(model).__name__, "bytes_held": held, "bytes_whole": held}


def prepared(options: None) -> dict[str, object]:
    return {"distributed_type": "NO"}


def doubts(options: None, evidence: Evidence) -> list[str]:
    wrappers = ("DataParallel", "DistributedDataParallel", "DeepSpeedEngine", "FullyShardedDataParallel")
    wrapped = evidence["wrapper"] in wrappers or evidence["wrapper"].startswith("FSDP")  # FSDP2 renames the class
    return [f"the model is wrapped in {evidence['wrapper']}"] if wrapped else []
