"""torch's first FullyShardedDataParallel, one unit per block of the model."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from faultline.base.errors import Impossible
from faultline.strategies import Evidence, Family, Gradients, Holds, Setup, Tensors, Wrapped, nodes
from faultline.strategies.releases import fsdp_plugin
from faultline.strategies.shared import (
    all_gather,
    clean,
    least_units,
    load_shards,
    nbytes,
    no_sync,
    parameter_map,
    plain_backward,
    save_shards,
    stepped,
    units,
)

HYBRID = "HYBRID_SHARD"


@dataclass(frozen=True)
class Options:
    """How much is sharded: one of torch's `ShardingStrategy`."""

    sharding: str


STRATEGIES = {
    "fsdp1-full": Options("FULL_SHARD"),
    "fsdp1-grad-op": Options("SHARD_GRAD_OP"),
    "fsdp1-no-shard": Options("NO_SHARD"),
    "fsdp1-hybrid": Options(HYBRID),
}
NUMBERS = {"FULL_SHARD": "1", "SHARD_GRAD_OP": "2", "NO_SHARD": "3", HYBRID: "4"}


def configured(settings: Mapping[str, object]) -> list[str]:
    """The strategy of a sharding, which configs name, or number."""
    asked = settings["sharding"] if settings.get("fsdp_version") == "1" else None
    return [name for name, each in STRATEGIES.items() if asked in (each.sharding.lower(), NUMBERS[each.sharding])]


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
    from torch.distributed.fsdp.wrap import CustomPolicy

    mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FullyShardedDataParallel(
        model,
        sharding_strategy=ShardingStrategy[options.sharding],
        auto_wrap_policy=CustomPolicy(set(units(model)).__contains__),
        mixed_precision=mixed if setup.precision == "bf16" else None,
        device_id=setup.device,
        use_orig_params=True,
        device_mesh=nodes.mesh(setup) if options.sharding == HYBRID else None,
        **setup.keywords,
    )
    stepping = stepped(optimizer(model), setup)
    return Wrapped(model, plain_backward(setup.micro_batches), accumulate=no_sync(model), **stepping)


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    _refuse_nodes(options, setup)
    # Accelerate 1.15 takes FULL_SHARD whatever `fsdp` says, unless this variable of its launcher is set.
    os.environ["FSDP_SHARDING_STRATEGY"] = options.sharding
    return {
        "fsdp": f"{options.sharding.lower()} auto_wrap",
        "fsdp_config": {"version": 1, "sync_module_states": False, "use_orig_params": True},
    }


def accelerate(options: Options, setup: Setup) -> dict[str, object]:
    _refuse_nodes(options, setup)
    plugin = fsdp_plugin(
        1,
        sharding_strategy=options.sharding,  # `reshard_after_forward` has no effect in accelerate 1.15
        auto_wrap_policy="transformer_based_wrap",
        sync_module_states=False,
        use_orig_params=True,
        **setup.keywords,
    )
    return {"fsdp_plugin": plugin}


def _refuse_nodes(options: Options, setup: Setup) -> None:
    """Raises Impossible for HYBRID_SHARD unless half of the ranks have a GPU each here: accelerate 1.15
    (accelerator.py:1940) hands FSDP1 no mesh, and torch 2.13 (fsdp/_init_utils.py:162) then takes as many ranks for a
    node as it counts devices: on a CPU, one."""
    import torch

    devices = torch.cuda.device_count() if setup.device.type == "cuda" else 1
    if options.sharding == HYBRID and devices * nodes.NODES != setup.world_size:
        raise Impossible(
            "accelerate gives FSDP1 no device mesh, so that torch takes as many ranks for a node as it counts devices:"
            f" here {devices} of {setup.world_size}, and not half of them"
        )


def parameters(model: Any) -> Tensors:
    held = {name: parameter.detach().clone() for name, parameter in {**parameter_map(model), **_views(model)}.items()}
    gathered = _gathered(_sharded(model), lambda parameter: parameter.detach())
    return {**held, **{name: weight for name, weight, _ in gathered}}


def gradients(model: Any) -> Gradients:
    held = {name: None if p.grad is None else p.grad.detach().clone() for name, p in parameter_map(model).items()}
    # Under `no_sync()` each rank has a whole gradient of its own.
    reduced = [unit for unit in _sharded(model) if not _same_size(unit[0].flat_param.grad, unit[0].flat_param)]
    gathered = _gathered(reduced, lambda parameter: parameter.grad)
    return {**held, **{name: gradient if some else None for name, gradient, some in gathered}}


def _same_size(gradient: Any, flat: Any) -> bool:
    return gradient is not None and gradient.shape == flat._unpadded_unsharded_size


def _sharded(model: Any) -> list[tuple[Any, list[str]]]:
    """The handle of each unit that is sharded, and the names of its parameters."""
    prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    return [
        (handle, [clean(prefixes[info.module] + info.param_name) for info in handle.flat_param._param_infos])
        for handle in _handles(model)
        if handle.uses_sharded_strategy
    ]


def _handles(model: Any) -> list[Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    return [unit._handle for unit in FullyShardedDataParallel.fsdp_modules(model) if unit._handle]


def _gathered(units: list[tuple[Any, list[str]]], part: Callable[[Any], Any]) -> Iterator[tuple[str, Any, bool]]:
    """By name, a whole tensor from what every rank has of each parameter, its weights or its gradient, and whether any
    rank has some.

    `summon_full_params` does that too, but makes the root known to its units, as its first forward pass would: a
    cell would do something else than it does without being looked at.
    """
    shards = [_shard(handle.flat_param, part) for handle, _ in units]
    group = units[0][0].process_group if units else None  # with HYBRID_SHARD, the ranks of a node
    for (handle, names), everyone in zip(units, all_gather(shards, group), strict=True):
        flat, some = everyone[:, : -len(names)].flatten(), everyone[:, -len(names) :].any(0)
        whole = handle._get_unflat_views(flat[: handle.flat_param._unpadded_unsharded_size.numel()])
        yield from (
            (name, tensor.clone(), bool(any_of_it)) for name, tensor, any_of_it in zip(names, whole, some, strict=True)
        )


def _shard(flat: Any, part: Callable[[Any], Any]) -> Any:
    """This rank's shard of a flat parameter [n + parameters], and behind it which of them have any of what is asked."""
    parts = [part(parameter) for parameter in flat._params]
    shard = flat.new_zeros(flat._sharded_size.numel() + len(parts))
    for index, (tensor, place) in enumerate(zip(parts, flat._shard_param_infos, strict=True)):
        if tensor is not None and place.in_shard:
            shard[place.offset_in_shard : place.offset_in_shard + place.numel_in_shard] = tensor
            shard[index - len(parts)] = 1
    return shard


def _views(model: Any) -> Tensors:
    """What units hold as plain views at this moment: a unit that is all frozen is not put back after a
    forward pass when nothing is sharded, and `named_parameters` does not see its tensors then."""
    prefixes = {module: f"{name}." if name else "" for name, module in model.named_modules()}
    return {
        clean(prefixes[info.module] + info.param_name): getattr(info.module, info.param_name)
        for handle in _handles(model)
        for info in handle.flat_param._param_infos
    }


def evidence(model: Any) -> dict[str, object]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = FullyShardedDataParallel.fsdp_modules(model)
    held = nbytes(model.parameters())
    flat = [handle.flat_param for handle, _ in _sharded(model)]
    elsewhere = sum(
        (shape.numel() - shard.numel()) * shard.element_size()
        for one in flat
        for shape, shard in zip(one._shapes, one._params, strict=True)
    )
    return {
        "wrapper": type(model).__name__,
        "sharding": model.sharding_strategy.name if units else None,
        "units": len(units),
        "least_units": least_units(model),
        "shard_groups": nodes.ranks_of(unit.process_group for unit in units),
        "replica_groups": nodes.ranks_of(u._inter_node_pg for u in units if hasattr(u, "_inter_node_pg")),
        "bytes_held": held,
        "bytes_whole": held + elsewhere,
    }


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "FSDP", "fsdp_version": 1}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    if evidence["wrapper"] != "FullyShardedDataParallel":
        return [f"the model is wrapped in {evidence['wrapper']}, not FullyShardedDataParallel"]
    # FSDP1 itself turns every strategy into NO_SHARD when there is one rank.
    sharding = options.sharding if evidence["world_size"] > 1 else "NO_SHARD"
    wrong = [] if evidence["sharding"] == sharding else [f"sharding is {evidence['sharding']}, not {sharding}"]
    if evidence["units"] < evidence.get("least_units", 2):
        wrong.append(f"{evidence['units']} FSDP unit, not one per block")
    if sharding != "NO_SHARD" and evidence["bytes_held"] >= evidence["bytes_whole"]:
        wrong.append("every rank holds all parameters")
    elif sharding == HYBRID:
        wrong += nodes.doubts(evidence)
        wrong += nodes.not_a_share(
            evidence["bytes_held"], evidence["bytes_whole"], evidence["world_size"] // nodes.NODES
        )
    return wrong


FAMILY = Family(
    __name__,
    3,
    STRATEGIES,
    wrap=wrap,
    arguments=arguments,
    accelerate=accelerate,
    parameters=parameters,
    gradients=gradients,
    save=save_shards,
    load=load_shards,
    evidence=evidence,
    prepared=prepared,
    doubts=doubts,
    configured=configured,
    holds=lambda options: {"NO_SHARD": Holds.UNITS, HYBRID: Holds.NODE_SHARDS}.get(options.sharding, Holds.SHARDS),
    casts=True,
    resizes=True,
    usual=("fsdp1-full",),
    least_ranks={"fsdp1-hybrid": nodes.RANKS},
    argument_names=("fsdp", "fsdp_config"),
    settings={
        r"\b(?:HYBRID_SHARD|hybrid_shard)\b|sharding_strategy['\"]?[=: ]{1,3}4\b": ("fsdp1-hybrid",),
        r"fsdp_version['\"]?[=: ]{1,3}1|FullyShardedDataParallel|--fsdp\b": ("fsdp1*", "fsdp2*"),
    },
    engine_settings={r"DistributedType\.FSDP|distributed_type: FSDP|\bFSDP\b": ("fsdp*",)},
    frames={r"fsdp/(?:fully_sharded_data_parallel|_runtime_utils|_flat_param|_unshard_param_utils)": ("fsdp1*",)},
    presets={"fsdp1": ("fsdp1-full",)},
    aliases={"hybridshard": "fsdp1-hybrid", "fsdp1hsdp": "fsdp1-hybrid"},
    buffers="FSDP1 broadcasts buffers with `sync_module_states=True` as it wraps the model, and never again",
    same_start="`FSDP(..., sync_module_states=True)` gives all ranks rank 0's weights"
    " (accelerate: `fsdp_sync_module_states`)",
)
