"""transformers' own parallelism: a model is sharded as `from_pretrained` loads it, by a `DistributedConfig`."""

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from faultline.base.errors import Impossible
from faultline.strategies import Evidence, Family, Holds, Setup, Wrapped, nodes
from faultline.strategies.shared import (
    fsdp_units,
    gathered_gradients,
    gathered_parameters,
    load_shards,
    nbytes,
    plain_backward,
    save_shards,
    stepped,
)

LOADED = count()


@dataclass(frozen=True)
class Options:
    """The axes of the mesh over which a model is sharded: of one alone all ranks, else two groups by the outer one."""

    tp: bool = False
    fsdp: bool = False
    ep: bool = False
    replicates: bool = False


STRATEGIES = {
    "tp": Options(tp=True),
    "tp-ep": Options(tp=True, ep=True),
    "ep-fsdp": Options(fsdp=True, ep=True),
    "native-fsdp": Options(fsdp=True),
    "native-hsdp": Options(fsdp=True, replicates=True),
    "fsdp-tp": Options(fsdp=True, tp=True),
}


def sizes(options: Options, world_size: int) -> dict[str, int]:
    """The arguments of a DistributedConfig for a number of ranks."""
    replicas = nodes.NODES if options.replicates else 1
    tensor = world_size // (nodes.NODES if options.fsdp else 1) if options.tp else 1
    asked = {"tp_size": tensor, "fsdp_size": world_size // tensor // replicas, "dp_replicate_size": replicas}
    return asked | ({"ep_size": world_size} if options.ep else {})


def data_place(options: Options, rank: int, world_size: int) -> tuple[int, int]:
    """Ranks of one tensor-parallel group, which are neighbours, train on the same rows."""
    tensor = sizes(options, world_size)["tp_size"]
    return rank // tensor, world_size // tensor


def load_model(model: Any, options: Options, setup: Setup) -> Any:
    """The model as users load it, from a path: rank 0 saves it, and each rank loads its part."""
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor
    from transformers import PreTrainedModel

    try:
        from transformers.distributed import DistributedConfig

        config = DistributedConfig(**sizes(options, setup.world_size))
    except (ImportError, TypeError):
        raise Impossible("this stack's transformers has no DistributedConfig that trains") from None
    if not isinstance(model, PreTrainedModel):
        if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
            return model  # a part of it was loaded before
        raise Impossible(f"transformers shards models of its own as it loads them, and {type(model).__name__} is none")
    base = getattr(model, "base_model", model)
    for asked, plan in ((options.tp, "_tp_plan"), (options.ep, "_ep_plan")):
        if asked and not (getattr(model, plan, None) or getattr(base, plan, None)):
            raise Impossible(f"transformers has no {plan[1:3].upper()} plan for {type(model).__name__}")
    folder = Path(setup.folder) / f"whole-{next(LOADED)}"
    if setup.rank == 0:
        model.save_pretrained(folder)
    dist.barrier()
    attention = model.config._attn_implementation
    loaded = type(model).from_pretrained(
        folder, distributed_config=config, dtype=model.dtype, attn_implementation=attention
    )
    trains = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for name, parameter in loaded.named_parameters():
        parameter.requires_grad_(trains[name])
    return loaded.train(model.training)


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    def accumulate(last: bool) -> Any:
        for unit in fsdp_units(model):
            unit.set_requires_gradient_sync(last, recurse=False)
        return nullcontext()

    stepping = stepped(optimizer(model), setup)
    return Wrapped(model, plain_backward(setup.micro_batches), accumulate=accumulate, **stepping)


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    return {}


def accelerate(options: Options, setup: Setup) -> dict[str, object]:
    if options.fsdp:
        raise Impossible("accelerate refuses a model with DTensors that no tensor parallelism explains")
    from accelerate import ParallelismConfig

    return {"parallelism_config": ParallelismConfig(tp_size=setup.world_size)}


def evidence(model: Any) -> dict[str, object]:
    from torch.distributed.tensor import DTensor

    sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
    meshes = {p.device_mesh for p in sharded}
    shards = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return {
        "wrapper": "DTensor" if sharded else type(model).__name__,
        "mesh": {name: mesh.size(axis) for mesh in meshes for axis, name in enumerate(mesh.mesh_dim_names or ())},
        "fsdp_units": len(fsdp_units(model)),
        "plain": len([*model.parameters()]) - len(sharded),
        "bytes_held": nbytes(shards),
        "bytes_whole": nbytes(model.parameters()),
    }


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "NATIVE"}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    if evidence["wrapper"] != "DTensor":
        return ["no parameter of the model is sharded"]
    asked = sizes(options, evidence["world_size"])
    mesh = {axis: size for axis, size in evidence["mesh"].items() if size > 1}
    wrong = []
    wanted = {name.removesuffix("_size"): size for name, size in asked.items()}
    if mesh != {axis: size for axis, size in wanted.items() if size > 1 or getattr(options, axis, False)}:
        wrong.append(f"its mesh is {mesh}")
    if bool(evidence["fsdp_units"]) != options.fsdp:
        wrong.append(f"it has {evidence['fsdp_units']} FSDP units")
    if evidence["bytes_held"] >= evidence["bytes_whole"]:
        wrong.append("every rank holds all parameters")
    return wrong


FAMILY = Family(
    __name__,
    5,
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
    load_model=load_model,
    data_place=data_place,
    holds=lambda options: Holds.SHARDS if options.fsdp else Holds.PARTS,
    package="transformers",
    needs={"transformers": ">=5.16"},
    mechanism_only=True,
    named_only=("tp-ep", "ep-fsdp"),
    least_ranks={name: nodes.RANKS if name in ("native-hsdp", "fsdp-tp") else 2 for name in STRATEGIES},
    settings={
        r"\btp_size['\"]?[=: ]{1,3}(?:[2-9]|1\d)": ("tp*", "fsdp-tp"),
        r"\bep_size['\"]?[=: ]{1,3}(?:[2-9]|1\d)": ("tp-ep", "ep-fsdp"),
        r"\bfsdp_size['\"]?[=: ]{1,3}(?:[2-9]|1\d)": ("native*", "ep-fsdp", "fsdp-tp"),
    },
    frames={r"transformers/distributed/tensor_parallel": ("tp*", "fsdp-tp")},
    aliases={"tensorparallelism": "tp", "expertparallelism": "ep-fsdp", "dtensor": "native*"},
    buffers="ranks keep their own buffers",
)
