"""torch's first FullyShardedDataParallel, one unit per block of the model."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from faultline.strategies import Setup, Wrapped
from faultline.strategies._common import clean, named, nbytes, no_sync, plain_backward, plain_step, units

ORDER = 3
STRATEGIES: dict[str, dict[str, Any]] = {
    "fsdp1-full": {"sharding": "FULL_SHARD", "fsdp": "full_shard"},
    "fsdp1-grad-op": {"sharding": "SHARD_GRAD_OP", "fsdp": "shard_grad_op"},
    "fsdp1-no-shard": {"sharding": "NO_SHARD", "fsdp": "no_shard"},
}


def wrap(model: Any, optimizer: Any, options: dict[str, Any], setup: Setup) -> Wrapped:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    own = {*units(model)}
    mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[options["sharding"]],
        auto_wrap_policy=CustomPolicy(own.__contains__),
        mixed_precision=mixed if setup.precision == "bf16" else None,
        device_id=setup.device,
        use_orig_params=True,
    )
    return Wrapped(model, plain_backward(setup.micro_batches), plain_step(optimizer(model)), accumulate=no_sync(model))


def arguments(options: dict[str, Any], setup: Setup) -> dict[str, Any]:
    # Accelerate 1.15 takes FULL_SHARD whatever `fsdp` says, unless this variable of its launcher is set.
    os.environ["FSDP_SHARDING_STRATEGY"] = options["sharding"]
    return {
        "fsdp": f"{options['fsdp']} auto_wrap",
        "fsdp_config": {"version": 1, "sync_module_states": False, "use_orig_params": True},
    }


def accelerate(options: dict[str, Any], setup: Setup) -> dict[str, Any]:
    from faultline.releases import fsdp_plugin

    plugin = fsdp_plugin(
        1,
        sharding_strategy=options["sharding"],  # `reshard_after_forward` has no effect in accelerate 1.15
        auto_wrap_policy="transformer_based_wrap",
        sync_module_states=False,
        use_orig_params=True,
    )
    return {"fsdp_plugin": plugin}


def parameters(model: Any) -> dict[str, Any]:
    with _whole(model):
        return {name: parameter.detach().clone() for name, parameter in {**named(model), **_views(model)}.items()}


def _whole(model: Any, **options: Any) -> AbstractContextManager[Any]:
    """All parameters gathered. Where nothing is sharded there is nothing to gather, and FSDP1 refuses to once a
    forward pass went around its root."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = FullyShardedDataParallel.fsdp_modules(model)
    if not any(unit._handle and unit._handle.uses_sharded_strategy for unit in units):
        return nullcontext()
    return FullyShardedDataParallel.summon_full_params(model, writeback=False, **options)


def _views(model: Any) -> dict[str, Any]:
    """What units hold as plain views at this moment: a unit that is all frozen is not put back after a
    forward pass when nothing is sharded, and `named_parameters` does not see its tensors then."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    return {
        clean(prefixes[info.module] + info.param_name): getattr(info.module, info.param_name)
        for unit in FullyShardedDataParallel.fsdp_modules(model)
        if unit._handle
        for info in unit._handle.flat_param._param_infos
    }


def gradients(model: Any) -> dict[str, Any]:
    with _whole(model, with_grads=True):
        return {
            name: None if parameter.grad is None else parameter.grad.detach().clone()
            for name, parameter in named(model).items()
        }


def evidence(model: Any) -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = FullyShardedDataParallel.fsdp_modules(model)
    with _whole(model):
        whole = nbytes(model.parameters())
    return {
        "wrapper": type(model).__name__,
        "sharding": model.sharding_strategy.name if units else None,
        "units": len(units),
        "bytes_held": nbytes(model.parameters()),
        "bytes_whole": whole,
    }


def prepared(options: dict[str, Any]) -> dict[str, Any]:
    return {"distributed_type": "FSDP", "fsdp_version": 1}


def doubts(options: dict[str, Any], found: dict[str, Any]) -> list[str]:
    if found["wrapper"] != "FullyShardedDataParallel":
        return [f"the model is wrapped in {found['wrapper']}, not FullyShardedDataParallel"]
    # FSDP1 itself turns every strategy into NO_SHARD when there is one rank.
    sharding = options["sharding"] if found["world_size"] > 1 else "NO_SHARD"
    wrong = [] if found["sharding"] == sharding else [f"sharding is {found['sharding']}, not {sharding}"]
    if found["units"] < 2:
        wrong.append(f"{found['units']} FSDP unit, not one per block")
    if sharding != "NO_SHARD" and found["bytes_held"] >= found["bytes_whole"]:
        wrong.append("every rank holds all parameters")
    return wrong
