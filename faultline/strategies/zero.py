"""DeepSpeed's ZeRO, each setting from the JSON file in ds_configs/ that bears its name."""

import copy
import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.strategies import ROWS, Config, Evidence, Family, Holds, Setup, Wrapped, merged, nodes
from faultline.strategies.shared import nbytes, schedule
from faultline.strategies.zero_tensors import gradients, parameters

STAGE = (
    r"zero_stage['\"]?[=: ]{1,3}(\d)|zero_optimization_stage[ .=:]{1,40}(\d)",
    r"['\"]stage['\"]: ?(\d)",
    r"[Zz]e[Rr][Oo][-_ ]?(?:[Ss]tage[-_ ]?)?([0-3])(?![A-Za-z0-9])",  # zero3_bf16.json, too
    r"ds_z(\d)",
    r"\bz(\d)_(?:offload_)?config",
)
CONFIGS = ROOT / "ds_configs"
OPTIMIZERS = {1: "DeepSpeedZeroOptimizer", 2: "DeepSpeedZeroOptimizer", 3: "DeepSpeedZeroOptimizer_Stage3"}


@functools.cache
def read_config(file: Path) -> Config:
    """A DeepSpeed config; raises UsageError that names the file and line of a mistake."""
    try:
        config = json.loads(file.read_text())
        stage = config["zero_optimization"]["stage"]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file.name}: not a usable DeepSpeed config: {type(error).__name__}: {error}") from None
    if type(stage) is not int or stage not in (0, 1, 2, 3):
        raise UsageError(f"{file.name}: zero_optimization.stage must be 0, 1, 2 or 3, not {stage!r}")
    return config


@dataclass(frozen=True)
class Options:
    """A config's file, and its section on ZeRO."""

    file: Path
    zero: Config


STRATEGIES = {
    file.stem: Options(file, read_config(file)["zero_optimization"])
    for file in sorted(CONFIGS.glob("*.json"), key=lambda file: file.stem)
}


def configured(settings: Mapping[str, Any]) -> list[str]:
    """The strategies of a stage: only the model shows which bucket is smaller than it.

    ``auto`` is the square of the hidden size in transformers, and so smaller.
    """
    stage = settings.get("zero_stage")
    if stage is None:
        return []
    if stage == 3 and "param" in settings["offload"]:
        return ["zero3-offload-param"]
    if stage in (2, 3) and settings["offload"]:
        return [f"zero{stage}-offload"]
    if stage == 3 and settings.get("hpz", 1) > 1:
        return ["zero3-hpz"]
    small = f"zero{stage}-small"
    return [small] if settings["bucket"] == "auto" and stage else [f"zero{stage}", small]


def config(options: Options, setup: Setup) -> Config:
    """The file as it stands at world size 2 and fp32, else with the batch and precision of the cell."""
    content = merged(copy.deepcopy(read_config(options.file)), setup.deepspeed)
    content["train_micro_batch_size_per_gpu"] = ROWS // setup.data_world
    if setup.micro_batches > 1:
        content["gradient_accumulation_steps"] = setup.micro_batches
    if setup.precision == "bf16":
        content["bf16"] = {"enabled": True}
    return content


def exported(options: Options, setup: Setup, changes: Config) -> Config:
    """The config for an exported file, without what DeepSpeed does anyway."""
    content = merged(config(options, setup), changes)
    usual: Config = {"gradient_accumulation_steps": 1}
    if "offload_optimizer" not in content["zero_optimization"]:
        usual["zero_force_ds_cpu_optimizer"] = False
    return {key: value for key, value in content.items() if key not in usual or usual[key] != value}


def wrap(model: Any, optimizer: Any, options: Options, setup: Setup) -> Wrapped:
    import deepspeed

    scheduled = {"lr_scheduler": schedule} if setup.scheduled else {}
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer(model), config=config(options, setup), **scheduled
    )

    @contextmanager
    def accumulate(last: bool) -> Iterator[None]:
        yield
        if not last:
            engine.step()  # is called for every micro-batch, and steps with the last

    return Wrapped(engine, engine.backward, engine.step, accumulate=accumulate)


def save(wrapped: Wrapped, folder: Path) -> None:
    """DeepSpeed's own checkpoint, which has the schedule too."""
    wrapped.model.save_checkpoint(str(folder), tag="half")


def load(wrapped: Wrapped, folder: Path) -> None:
    """Raises RuntimeError where DeepSpeed itself only warns that there is nothing to load."""
    path, _ = wrapped.model.load_checkpoint(str(folder), tag="half")
    if path is None:
        raise RuntimeError("DeepSpeed loaded no checkpoint")


def arguments(options: Options, setup: Setup) -> dict[str, object]:
    content = config(options, setup)
    if content == read_config(options.file):
        return {"deepspeed": str(options.file)}
    file = Path(setup.folder) / f"deepspeed-{setup.rank}.json"
    file.write_text(json.dumps(content))
    return {"deepspeed": str(file)}


def accelerate(options: Options, setup: Setup) -> dict[str, object]:
    from accelerate import DeepSpeedPlugin

    return {"deepspeed_plugin": DeepSpeedPlugin(hf_ds_config=arguments(options, setup)["deepspeed"])}


def evidence(engine: Any) -> dict[str, object]:
    if not hasattr(engine, "zero_optimization_stage"):
        return {"wrapper": type(engine).__name__}
    known, optimizer = list(engine.parameters()), engine.optimizer
    partitions = getattr(optimizer, "fp32_partitioned_groups_flat", None)  # stage 3 hands them over only to step
    stepped = partitions or [p for group in engine.basic_optimizer.param_groups for p in group["params"]]
    trained = [p for p in known if p.requires_grad]
    beside_shards = [p for p in known if hasattr(p, "ds_status") and p.ds_status.name == "AVAILABLE"]  # whole by now
    secondary = [p.ds_secondary_tensor for p in known if getattr(p, "ds_secondary_tensor", None) is not None]
    return {
        "wrapper": type(engine).__name__,
        "stage": engine.zero_optimization_stage(),
        "accumulation": engine.gradient_accumulation_steps(),
        "optimizer": type(optimizer).__name__,
        "partition_gradients": getattr(optimizer, "partition_gradients", None),
        # At stage 0 the engine reduces in buckets of a fixed size: there, it is only what was asked for.
        "reduce_bucket_size": getattr(optimizer, "reduce_bucket_size", engine.zero_reduce_bucket_size()),
        "offload_optimizer": getattr(optimizer, "cpu_offload", getattr(optimizer, "offload_optimizer", False)),
        "offload_param": getattr(optimizer, "offload_param", False),
        "masters_on": sorted({p.device.type for p in stepped}),
        "masters_held": sum(p.numel() for p in stepped),
        "masters_whole": sum(getattr(p, "ds_numel", p.numel()) for p in trained),
        "bytes_held": nbytes(getattr(p, "ds_tensor", p) for p in known) + nbytes(beside_shards),
        "bytes_whole": sum(getattr(p, "ds_numel", p.numel()) * p.element_size() for p in known),
        "secondary_held": nbytes(secondary),
        "secondary_groups": nodes.ranks_of([_node()] if secondary else []),
    }


def used(engine: Any) -> int:
    """How many collectives ran within the node: gathers of the secondary partition, if there is one."""
    return int(_node()._get_sequence_number_for_group()) if _node() else 0


def _node() -> Any:
    """The process group of hpZ's secondary partition; None without one."""
    from deepspeed.utils import groups

    return groups._get_zero_param_intra_parallel_group()


def prepared(options: Options) -> dict[str, object]:
    return {"distributed_type": "DEEPSPEED", "zero_stage": options.zero["stage"]}


def doubts(options: Options, evidence: Evidence) -> list[str]:
    zero = options.zero
    if evidence.get("wrapper") != "DeepSpeedEngine":
        return [f"the model is wrapped in {evidence.get('wrapper')}, not DeepSpeedEngine"]
    stage = zero["stage"]
    wanted = {
        "stage": stage,
        "accumulation": evidence.get("engine_accumulates", evidence["accumulation"]),
        "partition_gradients": {1: False, 2: True}.get(stage),
        "reduce_bucket_size": zero.get("reduce_bucket_size", evidence["reduce_bucket_size"]),
        "offload_optimizer": "offload_optimizer" in zero,
        "offload_param": "offload_param" in zero,
    }
    wrong = [f"{key} is {evidence[key]}, not {value}" for key, value in wanted.items() if evidence[key] != value]
    if (evidence["optimizer"] if evidence["optimizer"].startswith("DeepSpeedZero") else None) != OPTIMIZERS.get(stage):
        wrong.append(f"the optimizer is a {evidence['optimizer']}")
    if "reduce_bucket_size" not in zero and evidence["reduce_bucket_size"] < evidence["bytes_whole"]:
        wrong.append(f"reduce_bucket_size is {evidence['reduce_bucket_size']}: the model may not fit into one")
    if stage and evidence["world_size"] > 1 and evidence["masters_held"] >= evidence["masters_whole"]:
        wrong.append("every rank steps all weights")
    if not stage and evidence["masters_held"] < evidence["masters_whole"]:
        wrong.append(f"a rank steps {evidence['masters_held']} of {evidence['masters_whole']} weights")
    if evidence["device"] != "cpu" and (evidence["masters_on"] == ["cpu"]) != ("offload_optimizer" in zero):
        wrong.append(f"the optimizer's weights are on {', '.join(evidence['masters_on'])}")
    if stage == 3 and evidence["world_size"] > 1 and evidence["bytes_held"] >= evidence["bytes_whole"]:
        wrong.append("every rank holds all parameters")
    return wrong + nodes.secondary_doubts(zero.get("zero_hpz_partition_size", 1), evidence)


FAMILY = Family(
    __name__,
    2,
    STRATEGIES,
    wrap=wrap,
    arguments=arguments,
    accelerate=accelerate,
    parameters=parameters,
    gradients=gradients,
    save=save,
    load=load,
    evidence=evidence,
    prepared=prepared,
    doubts=doubts,
    used=used,
    configured=configured,
    holds=lambda options: Holds.SHARDS if options.zero["stage"] == 3 else Holds.WHOLE,
    package="deepspeed",
    casts=True,
    usual=("zero2", "zero3"),
    one_rank=("zero2", "zero3"),
    least_ranks={"zero3-hpz": nodes.RANKS},
    argument_names=("deepspeed",),
    settings={
        r"zero_hpz_partition_size['\"]?[=: ]{1,3}(?:[2-9]|1\d)": ("zero3-hpz",),
        "|".join(STAGE): ("zero{}*",),
    },
    engine_settings={
        r"DistributedType\.DEEPSPEED|distributed_type: DEEPSPEED|DeepSpeedEngine|--deepspeed\b": ("zero*",),
    },
    frames={
        r"deepspeed/runtime/zero/(?:stage3|parameter_offload|partition\w*)\.py": ("zero3*",),
        r"deepspeed/runtime/zero/stage_1_and_2\.py": ("zero1*", "zero2*"),
        r"deepspeed/runtime/(?:engine|bf16_optimizer|fp16)": ("zero*",),
    },
    # Reading every file here means that a broken one is refused before anything starts.
    presets={f"zero{stage}": (f"zero{stage}", f"zero{stage}-small") for stage in (1, 2, 3)},
    aliases={"deepspeed": "zero*", "deepspeedzero": "zero*", "hpz": "zero3-hpz", "zero3hpz": "zero3-hpz"},
    buffers="DeepSpeed never synchronises buffers: each rank keeps its own",
    moved_by_hand="under ZeRO-3, move them between forward passes, in `deepspeed.zero.GatheredParameters(parameters,"
    " modifier_rank=0)` of what is moved and what is read",
)
