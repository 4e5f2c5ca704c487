"""torch's fully_shard (FSDP2), one group per block of the model."""

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from faultline.base.errors import Impossible
from faultline.strategies import Evidence, Family, Holds, Setup, Wrapped, nodes
from faultline.strategies.releases import fsdp_plugin
from faultline.strategies.shared import (
    fsdp_units,
    gathered_gradients,
    gathered_parameters,
    least_units,
    load_shards,
    nbytes,
    plain_backward,
    save_shards,
    stepped,
    units,
)


@dataclass(frozen=True)
class Options:
    """The arguments of `fully_shard` in which its strategies differ; with `replicates`, the mesh has two dimensions."""

    reshard_after_forward: bool = True
    replicates: bool = False


STRATEGIES = {
    "fsdp2": Options(),
    "fsdp2-no-reshard": Options(reshard_after_forward=False),
    "fsdp2-hsdp": Options(replicates=True),
}


def configured(settings: Mapping[str, object]) -> list[str]:
    """The strategy of a config; what it doesn't say is torch's default."""
    if settings.get("fsdp_version") != "2":
        return []
    asked = Options(settings["reshard"] is not False, bool(settings.get("replicates")))
    return [name for name, options in STRATEGIES.items() if options == asked]


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    settings = {
        "mesh": nodes.mesh(setup) if options.replicates else init_device_mesh(setup.device.type, (setup.world_size,)),
        "mp_policy": bf16 if setup.precision == "bf16" else MixedPrecisionPolicy(),
    }
    if not options.reshard_after_forward:  # else torch's default: all but the root, which accelerate leaves to it
        settings["reshard_after_forward"] = False
    for module in reversed(units(model)):  # a unit within a unit first
        fully_shard(module, **settings)
    fully_shard(model, **{**settings, **setup.keywords})  # of the root alone

    def accumulate(last: bool) -> Any:
        model.set_requires_gradient_sync(last)
        return nullcontext()

    stepping = stepped(optimizer(model), setup)
    return Wrapped(model, plain_backward(setup.micro_batches), accumulate=accumulate, **stepping)


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    fsdp_plugin(2, cpu_ram_efficient_loading=False)  # raises Impossible where there is none
    # Transformers 4 doesn't hand `version` on: there, FSDP2 is chosen by the variables that accelerate's launcher sets,
    # which transformers 5 overrules.
    os.environ["FSDP_VERSION"] = "2"
    os.environ["FSDP_RESHARD_AFTER_FORWARD"] = str(options.reshard_after_forward).lower()
    reshards = options.reshard_after_forward
    config = {"version": 2, "sync_module_states": False, "reshard_after_forward": reshards}
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": config, **_parallelism(options, setup)}


def accelerate(options: Options, setup: Setup) -> dict[str, object]:
    plugin = fsdp_plugin(
        2,
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=False,
        **{"reshard_after_forward": options.reshard_after_forward, **setup.keywords},
    )
    return {"fsdp_plugin": plugin, **_parallelism(options, setup)}


def _parallelism(options: Options, setup: Setup) -> dict[str, object]:
    """Accelerate's own way to name a mesh of two dimensions; raises Impossible before it had one (1.10)."""
    if not options.replicates:
        return {}
    try:
        from accelerate import ParallelismConfig
    except ImportError:
        raise Impossible("this stack's accelerate has no ParallelismConfig, which came with 1.10") from None
    shape = {"dp_replicate_size": nodes.NODES, "dp_shard_size": setup.world_size // nodes.NODES}
    return {"parallelism_config": ParallelismConfig(**shape)}


def evidence(model: Any) -> dict[str, object]:
    from torch.distributed.tensor import DTensor

    units = fsdp_units(model)
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in units]
    # A forward pass without a backward pass leaves parameters whole for now: what a rank owns of them counts.
    managed = [parameter for group in groups if group for parameter in group.fsdp_params]
    owned = {id(p._unsharded_param): p.sharded_param for p in managed if hasattr(p, "_unsharded_param")}
    held = [owned.get(id(p), p) for p in model.parameters()]
    shards = [p.to_local() if isinstance(p, DTensor) else p for p in held]
    return {
        "wrapper": next((base.__name__ for base in type(model).__mro__ if base.__name__ == "FSDPModule"), "none"),
        "units": len(units),
        "least_units": least_units(model),
        # The root doesn't reshard, nor does accelerate's group of norm and head.
        "reshard_after_forward": any(group and group.post_forward_mesh_info is not None for group in groups[1:]),
        "shard_groups": nodes.ranks_of(group.mesh_info.shard_process_group for group in groups if group),
        "replica_groups": nodes.ranks_of(
            group.mesh_info.replicate_process_group
            for group in groups
            if group and hasattr(group.mesh_info, "replicate_process_group")
        ),
        "bytes_held": nbytes(shards),
        "bytes_whole": nbytes(model.parameters()),
    }


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "FSDP", "fsdp_version": 2}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    if evidence["wrapper"] != "FSDPModule":
        return ["fully_shard was not applied to the model"]
    least = evidence.get("least_units", 2)
    wrong = [] if evidence["units"] >= least else [f"{evidence['units']} FSDP unit, not one per block"]
    # The root by itself doesn't reshard after its forward pass, whatever it is said.
    if evidence["reshard_after_forward"] != options.reshard_after_forward and least > 1:
        wrong.append(f"reshard_after_forward is {evidence['reshard_after_forward']}")
    if evidence["world_size"] > 1 and evidence["bytes_held"] >= evidence["bytes_whole"]:
        wrong.append("every rank holds all parameters")
    elif options.replicates:
        wrong += nodes.doubts(evidence)
        wrong += nodes.not_a_share(
            evidence["bytes_held"], evidence["bytes_whole"], evidence["world_size"] // nodes.NODES
        )
    elif evidence.get("replica_groups"):
        wrong.append(f"it has copies on ranks {evidence['replica_groups']}")
    return wrong


FAMILY = Family(
    __name__,
    4,
    STRATEGIES,
    wrap=wrap,
    arguments=arguments,
    accelerate=accelerate,
    parameters=gathered_parameters,
    gradients=gathered_gradients,
    save=save_shards,
    load=load_shards,
    evidence=evidence,
    prepared=prepared,
    doubts=doubts,
    configured=configured,
    holds=lambda options: Holds.NODE_SHARDS if options.replicates else Holds.SHARDS,
    casts=True,
    resizes=True,
    usual=("fsdp2",),
    one_rank=("fsdp2",),
    least_ranks={"fsdp2-hsdp": nodes.RANKS},
    argument_names=("fsdp", "fsdp_config"),
    settings={
        r"dp_replicate_size['\"]?[=: ]{1,3}(?:[2-9]|1\d)": ("fsdp2-hsdp",),
        r"fsdp_version['\"]?[=: ]{1,3}2|FSDP2\b|fsdp2\b": ("fsdp2*",),
    },
    frames={r"fsdp/_fully_shard|_fsdp_param|FSDPModule": ("fsdp2*",)},
    presets={"fsdp2": ("fsdp2",)},
    aliases={"hsdp": "fsdp2-hsdp", "fsdp2hybrid": "fsdp2-hsdp"},
    buffers="FSDP2 never synchronises buffers: each rank keeps its own",
    same_start="`set_model_state_dict` with `StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)` gives"
    " all ranks rank 0's weights",
)
