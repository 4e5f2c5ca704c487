"""torch's DistributedDataParallel, plain and with the options that people are told to set."""

from __future__ import annotations

import re
from typing import Any

from faultline.strategies import Setup, Wrapped
from faultline.strategies.shared import nbytes, no_sync, plain_backward, plain_step, whole_gradients, whole_parameters

ORDER = 1
PACKAGE = "torch"
USUAL = ONE_RANK = ("ddp",)
# As in the arguments of DDP, and not as in the message that recommends it.
SETTINGS = (
    (re.compile(r"(?<!argument )find_unused_parameters['\"]?[=: ]{1,3}True(?!`|\W{1,3}to\b)"), ("ddp-find-unused",)),
)
ENGINE = ((re.compile(r"distributed_type: (?:MULTI_GPU|MULTI_CPU)|DistributedType\.MULTI"), ("ddp*",)),)
MESSAGES = ((re.compile(r"find_unused_parameters=True` is enabled"), ("ddp-find-unused",)),)
FRAMES = (
    (re.compile(r"Expected to have finished reduction|Expected to mark a variable ready only once"), ("ddp*",)),
    (re.compile(r"nn/parallel/distributed\.py|DistributedDataParallel\("), ("ddp*",)),
)
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"find_unused_parameters": False, "static_graph": False},
    "ddp-find-unused": {"find_unused_parameters": True, "static_graph": False},
    "ddp-static-graph": {"find_unused_parameters": False, "static_graph": True},
}


def wrap(model: Any, optimizer: Any, options: dict[str, Any], setup: Setup) -> Wrapped:
    from torch.nn.parallel import DistributedDataParallel

    devices = [setup.device] if setup.device.type == "cuda" else None
    model = DistributedDataParallel(model, device_ids=devices, **options)
    return Wrapped(model, plain_backward(setup.micro_batches), plain_step(optimizer(model)), accumulate=no_sync(model))


def arguments(options: dict[str, Any], setup: Setup) -> dict[str, Any]:
    from transformers import TrainingArguments

    given = {"ddp_find_unused_parameters": options["find_unused_parameters"]}
    if options["static_graph"]:
        given["ddp_static_graph"] = True
    if lacking := given.keys() - TrainingArguments.__dataclass_fields__.keys():
        raise ImportError(f"TrainingArguments has no {lacking.pop()}")
    return given


def accelerate(options: dict[str, Any], setup: Setup) -> dict[str, Any]:
    from accelerate.utils import DistributedDataParallelKwargs

    return {"kwargs_handlers": [DistributedDataParallelKwargs(**options)]}


parameters, gradients = whole_parameters, whole_gradients


def evidence(model: Any) -> dict[str, Any]:
    held = nbytes(model.parameters())
    return {
        "wrapper": type(model).__name__,
        "find_unused_parameters": getattr(model, "find_unused_parameters", None),
        "static_graph": getattr(model, "static_graph", None),
        "bytes_held": held,
        "bytes_whole": held,
    }


def prepared(options: dict[str, Any]) -> dict[str, Any]:
    return {"distributed_type": "MULTI"}


def doubts(options: dict[str, Any], found: dict[str, Any]) -> list[str]:
    if found["wrapper"] != "DistributedDataParallel":
        return [f"the model is wrapped in {found['wrapper']}, not DistributedDataParallel"]
    return [f"{key} is {found[key]}" for key, value in options.items() if found[key] != value]
