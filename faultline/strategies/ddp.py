"""torch's DistributedDataParallel, plain and with the options that people are advised to set."""

from dataclasses import asdict, dataclass
from typing import Any

from faultline.strategies import Evidence, Family, Setup, Wrapped
from faultline.strategies.shared import (
    load_whole,
    nbytes,
    no_sync,
    plain_backward,
    save_whole,
    stepped,
    whole_gradients,
    whole_parameters,
)


@dataclass(frozen=True)
class Options:
    """The arguments of DDP."""

    find_unused_parameters: bool = False
    static_graph: bool = False


STRATEGIES = {
    "ddp": Options(),
    "ddp-find-unused": Options(find_unused_parameters=True),
    "ddp-static-graph": Options(static_graph=True),
}


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    from torch.nn.parallel import DistributedDataParallel

    devices = [setup.device] if setup.device.type == "cuda" else None
    model = DistributedDataParallel(model, device_ids=devices, **asdict(options), **setup.keywords)
    stepping = stepped(optimizer(model), setup)
    return Wrapped(model, plain_backward(setup.micro_batches), accumulate=no_sync(model), **stepping)


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    from transformers import TrainingArguments

    arguments: dict[str, object] = {"ddp_find_unused_parameters": options.find_unused_parameters}
    if options.static_graph:
        arguments["ddp_static_graph"] = True
    if missing := arguments.keys() - TrainingArguments.__dataclass_fields__.keys():
        raise ImportError(f"TrainingArguments has no {missing.pop()}")
    return arguments


def accelerate(options: Options, setup: Setup) -> dict[str, object]:
    from accelerate.utils import DistributedDataParallelKwargs

    return {"kwargs_handlers": [DistributedDataParallelKwargs(**asdict(options), **setup.keywords)]}


def evidence(model: Any) -> dict[str, object]:
    held = nbytes(model.parameters())
    return {
        "wrapper": type(model).__name__,
        "find_unused_parameters": getattr(model, "find_unused_parameters", None),
        "static_graph": getattr(model, "static_graph", None),
        "bytes_held": held,
        "bytes_whole": held,
    }


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "MULTI"}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    if evidence["wrapper"] != "DistributedDataParallel":
        return [f"the model is wrapped in {evidence['wrapper']}, not DistributedDataParallel"]
    return [f"{key} is {evidence[key]}" for key, value in asdict(options).items() if evidence[key] != value]


FAMILY = Family(
    __name__,
    1,
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
    resizes=True,
    broadcasts_buffers=True,
    usual=("ddp",),
    one_rank=("ddp",),
    # As in the arguments of DDP, and not as in the message that recommends it.
    settings={r"(?<!argument )find_unused_parameters['\"]?[=: ]{1,3}True(?!\)?`|\W{1,3}to\b)": ("ddp-find-unused",)},
    engine_settings={r"distributed_type: MULTI_[A-Z]|DistributedType\.MULTI": ("ddp*",)},
    messages={
        r"find_unused_parameters=True` is enabled": ("ddp-find-unused",),
        r"You can enable unused parameter detection": ("ddp", "ddp-static-graph"),
    },
    frames={
        r"Expected to have finished reduction|Expected to mark a variable ready only once": ("ddp*",),
        r"nn/parallel/distributed\.py|DistributedDataParallel\(": ("ddp*",),
    },
    presets={"multi_gpu": ("ddp*",)},
    switches={"ddp_find_unused_parameters": "ddp-find-unused", "ddp_static_graph": "ddp-static-graph"},
    # By `require_forward_param_sync` in torch/nn/parallel/distributed.py, which a pass without gradients sets to False.
    buffers="DDP broadcasts rank 0's buffers as a forward pass begins, but not after a pass under `torch.no_grad()`: "
    "run that one on `model.module`",
)
