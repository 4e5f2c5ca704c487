"""One process and no distribution: where a failure can be distinguished from one of the strategies."""

from typing import Any

from faultline.strategies import Evidence, Family, Setup, Wrapped
from faultline.strategies.shared import (
    load_whole,
    nbytes,
    plain_backward,
    save_whole,
    stepped,
    whole_gradients,
    whole_parameters,
)

STRATEGIES = {"single": None}


def wrap(model: Any, optimizer: Any, options: None, setup: Setup) -> Wrapped:
    return Wrapped(model, plain_backward(setup.micro_batches), **stepped(optimizer(model), setup))


def arguments(options: None, setup: Setup) -> dict[str, object]:
    return {}


def accelerate(options: None, setup: Setup) -> dict[str, object]:
    return {}


def evidence(model: Any) -> dict[str, object]:
    held = nbytes(model.parameters())
    return {"wrapper": type(model).__name__, "bytes_held": held, "bytes_whole": held}


def prepared(options: None) -> dict[str, object]:
    return {"distributed_type": "NO"}


def doubts(options: None, evidence: Evidence) -> list[str]:
    wrappers = ("DataParallel", "DistributedDataParallel", "DeepSpeedEngine", "FullyShardedDataParallel", "DTensor")
    wrapped = evidence["wrapper"] in wrappers or evidence["wrapper"].startswith("FSDP")  # FSDP2 renames the class
    return [f"the model is wrapped in {evidence['wrapper']}"] if wrapped else []


FAMILY = Family(
    __name__,
    0,
    STRATEGIES,
    wrap=wrap,
    arguments=arguments,
    accelerate=accelerate,
    parameters=whole_parameters,
    gradients=whole_gradients,
    save=save_whole,
    load=load_whole,
    evidence=evidence,
    prepared=prepared,
    doubts=doubts,
    distributed=False,
    usual=("single",),
    presets={"single_gpu": ("single",)},
)
