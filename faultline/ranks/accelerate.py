"""Accelerate on machines without a GPU, and scenarios that train through it."""

import functools
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator, DistributedType
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import GradientAccumulationPlugin
from torch.distributed.fsdp import FullyShardedDataParallel

from faultline import scenario, strategies
from faultline.base.errors import Impossible
from faultline.ranks import parameters
from faultline.strategies import Setup, Wrapped
from faultline.strategies.shared import plain_step


def honest_on_cpu() -> None:
    """Make accelerate run what was asked for when the ranks have no GPU.

    Without this, accelerate 1.15 and transformers 5.23 train with plain DDP when
    FSDP or DeepSpeed was asked for (`DistributedType.MULTI_CPU`), and say nothing.
    The state is set right after it was made; everything that follows is accelerate's.
    """
    original = AcceleratorState.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        fresh = AcceleratorState._shared_state == {}
        original(self, *args, **kwargs)
        deepspeed, fsdp = kwargs.get("deepspeed_plugin"), kwargs.get("fsdp_plugin")
        parallelism = kwargs.get("parallelism_config")  # which accelerate refuses on CPUs
        asked = deepspeed or fsdp or (parallelism and parallelism.total_size > 1)
        if not fresh or self.distributed_type != DistributedType.MULTI_CPU or not asked:
            return
        changes: dict[str, object] = {"device": torch.device("cpu")}
        precision = self._mixed_precision
        if deepspeed:
            plugins = deepspeed if isinstance(deepspeed, dict) else {"default": deepspeed}
            first = next(iter(plugins.values()))
            first.set_mixed_precision(precision)
            first.select(_from_accelerator_state=True)
            changes |= {"distributed_type": DistributedType.DEEPSPEED, "deepspeed_plugins": deepspeed}
            changes |= {"_mixed_precision": "no"}
        elif fsdp:
            if precision != "no":
                fsdp.set_mixed_precision(precision)
            changes |= {"distributed_type": DistributedType.FSDP, "fsdp_plugin": fsdp}
        else:
            changes |= {"distributed_type": DistributedType.MULTI_GPU}
        AcceleratorState._shared_state.update(changes)
        PartialState._shared_state.update({k: changes[k] for k in ("device", "distributed_type")})

    AcceleratorState.__init__ = init


def honest_on_shared_gpus() -> None:
    """Make accelerate use gloo where ranks share a GPU and their process group is gloo's.

    It takes NCCL for granted on a GPU, and gathers in ways that gloo hasn't (``_gpu_gather`` in utils/operations.py):
    trainers fail in their first log. `ddp_backend` says it otherwise, but not for DeepSpeed.
    """
    original = PartialState.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.backend == "nccl" and torch.distributed.get_backend() == "gloo":
            PartialState._shared_state["backend"] = "gloo"

    PartialState.__init__ = init


def begin_anew() -> None:
    """Forget the first `Accelerator` of this process, which otherwise sets the strategy of every later one."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def wrap(built: scenario.Scenario, name: str, setup: Setup) -> Wrapped:
    """Put a scenario's model under a strategy through `Accelerator.prepare`."""
    if setup.device.type == "cpu":
        honest_on_cpu()
    check_wraps(name, setup)
    family, options = strategies.family(name), strategies.options(name)
    accelerator = Accelerator(
        cpu=setup.device.type == "cpu",
        mixed_precision="bf16" if setup.precision == "bf16" else "no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            setup.micro_batches, **built.keywords.get("accelerate", {})
        ),
        **family.accelerate(options, setup),
        **built.keywords.get("accelerator", {}),
    )
    optimizer = (built.optimizer or scenario.sgd)(built.model)
    schedule = [built.scheduler(optimizer)] if built.scheduler else []
    model, optimizer, *schedule = accelerator.prepare(built.model, optimizer, *schedule)
    # For DeepSpeed, `Accelerator.backward` runs the engine's step too.
    remain = accelerator.distributed_type != DistributedType.DEEPSPEED
    step = plain_step(optimizer, *schedule)

    def accumulate(last: bool) -> Any:
        return accelerator.accumulate(model)

    return Wrapped(model, accelerator.backward, step, accelerator, remain, accumulate, optimizer=optimizer)


def check_wraps(name: str, setup: Setup) -> None:
    """Raise Impossible where accelerate would leave a model as it is that is to be trained under DDP.

    It does where a single process has a GPU (``prepare_model`` asks for `multi_device`); on the CPU, it wraps.
    """
    if setup.device.type == "cuda" and setup.world_size == 1 and strategies.family(name) is strategies.family("ddp"):
        raise Impossible("accelerate wraps no model in DistributedDataParallel where a single process has a GPU")


def prepared() -> Mapping[str, object]:
    """How accelerate is to distribute what it will be given, by its own state, or by the DeepSpeed config that
    transformers has been given before there is one; empty before either."""
    from transformers.integrations.deepspeed import deepspeed_config

    if not AcceleratorState._shared_state:
        config = deepspeed_config()
        return {"distributed_type": "DEEPSPEED", "zero_stage": config["zero_optimization"]["stage"]} if config else {}
    state = AcceleratorState()
    kind = state.distributed_type.value
    shown = {"distributed_type": kind.split("_")[0]}
    if kind == "DEEPSPEED":
        return {**shown, "zero_stage": state.deepspeed_plugin.zero_stage}
    return {**shown, "fsdp_version": getattr(state.fsdp_plugin, "fsdp_version", 1)} if kind == "FSDP" else shown


def placement(model: Any) -> Mapping[str, object]:
    """Where a model that is only read lives: bytes on this rank against the whole, devices, mode."""
    held = whole = 0
    devices = set()
    for parameter in model.parameters():
        local = parameters.local(getattr(parameter, "ds_tensor", parameter))
        held += local.numel() * local.element_size()
        whole += getattr(parameter, "ds_numel", parameter.numel()) * parameter.element_size()
        devices.add(str(local.device))
    if units := FullyShardedDataParallel.fsdp_modules(model):
        flat = [unit._handle.flat_param for unit in units if unit._handle]
        whole = sum(f._unpadded_unsharded_size.numel() * f.element_size() for f in flat)
    return {
        "wrapper": type(model).__name__,
        "bytes_held": held,
        "bytes_whole": whole,
        "devices": sorted(devices),
        "training": model.training,
    }
