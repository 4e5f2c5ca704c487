"""The statements of configs about the engine that trains: accelerate's, DeepSpeed's, and the settings of FSDP."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline import strategies
from faultline.base.axes import PRECISIONS
from faultline.base.errors import UsageError
from faultline.base.text import matches, one_line
from faultline.projects import files
from faultline.projects.documents import Document, Place, Section
from faultline.strategies.naming import asked_for, configured, presets, within

YES, NO = frozenset(["yes"]), frozenset(["no"])
OTHER_TRAINER = "another"
"""A trainer that the catalogue doesn't run."""
# Axes of settings alone, of which a release makes more:
NOT_CLIPPED = "no gradient_clipping"  # DeepSpeed's config has no norm
UNNAMED = "unnamed mode"  # the arguments ask for checkpointing, and leave the mode to the libraries
NORM = "max_grad_norm"  # the norm at which gradients are meant to be clipped, or
IN_CODE = "set in code"  # the axes that a program sets itself, whatever its arguments say
SHARDED = "sharded state dict"
UNKNOWN = "unknown"  # if somebody gives a norm that nobody knows before the training runs
TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
STAGES = ("0", "1", "2", "3")
AUTO_CLIPPING = "0.30.0"  # the first accelerate that writes `gradient_clipping: auto` for its own config: not in 0.29.3
NO_STAGE = "not a stage (0, 1, 2 or 3), so it could be any"
DEEPSPEED = asked_for(["distributed_type: DEEPSPEED"])
"""Any strategy of its engine, as a pattern."""
ANYTHING = "*"
"""Stands among the unknown keys of a section for settings of any name, such as those of ``**arguments``."""


@dataclass(frozen=True)
class Default:
    """The values that a framework leaves of an axis in some releases, under some strategies, where nobody states it."""

    framework: str
    package: str
    axis: str
    values: frozenset[str]
    versions: str
    source: str
    strategies: tuple[str, ...] = ()
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def holds_for(self, section: Section) -> bool:
        """Whether the settings of a section leave it at that."""
        given = section.data.keys() | section.unknown
        if self.axis == "checkpointing" and "gradient_checkpointing" in section.unknown:
            return False
        return all(truth(section.get(key)) or (key == "rl" and section.get(key)) for key in self.when) and not (
            given & {*self.unless, ANYTHING}
        )


@dataclass(frozen=True)
class Statement:
    """The values that one place of a file leaves of an axis, or YES or NO for one of the settings that a failure needs.

    With a `note` where it leaves none that was measured, or can't be read. `shared` says that the values are the
    trainers which have a setting in today's TRL, of which an older release may lack some. `since` is the package and
    the release from which it holds, and `before` what it leaves with an older one. With a `default`, nobody stated it;
    what is `left_out` follows from a key that a file doesn't have.
    """

    axis: str
    values: frozenset[str]
    source: Place
    note: str = ""
    shared: bool = False
    since: tuple[str, str] = ("", "")
    before: frozenset[str] = frozenset()
    default: Default | None = None
    left_out: bool = False


def strategies_like(*patterns: str) -> frozenset[str]:
    """The strategies that match a pattern."""
    return frozenset(name for name in strategies.names() if matches(name, patterns))


def of_engine(kind: str) -> frozenset[str]:
    """The strategies of an engine, as accelerate's `distributed_type` names it."""
    return strategies_like(*asked_for([f"distributed_type: {kind}"]))


def truth(value: object) -> bool | None:
    """The value of a switch, which configs also write as a text; None for anything else, such as ``auto``."""
    return value if isinstance(value, bool) else TRUTH.get(str(value).strip().lower())


def accelerate(config: Section) -> Iterator[Statement]:
    """A config of `accelerate launch`."""
    value, source = config.get("distributed_type"), config.source("distributed_type")
    kind = "" if value is None else str(value).upper().rpartition(".")[2]
    if kind in ("NO", "FALSE"):  # YAML takes a NO without quotes for false
        yield Statement("strategy", strategies_like(*presets()["single_gpu"]), source)
    elif kind == "FSDP":
        yield from fsdp(config.section("fsdp_config"), source, default=1, replicas=replicas(config))
    elif kind == "DEEPSPEED":
        yield from deepspeed_plugin(config.section("deepspeed_config"), source)
    elif kind:
        names = of_engine(kind)
        yield Statement("strategy", names, source, "" if names else f"{one_line(kind)} was not measured")
    if "mixed_precision" in config.data:
        yield from precision(config, "mixed_precision", str(config.get("mixed_precision")))


def accelerate_named(arguments: Section, key: str) -> Iterator[Statement]:
    """An accelerate config that TRL's command line is given: one of TRL's by name, or a file."""
    name = arguments.get(key)
    if name in presets():
        yield Statement("strategy", strategies_like(*presets()[name]), arguments.source(key))
    elif config := named_config(arguments.document, name):
        yield from accelerate(config)


def named_config(document: Document, name: str) -> Section | None:
    """A config that a file names; None if there isn't one."""
    for path, shown in located(document, name):
        try:
            config = files.read(path, shown)
        except (OSError, UsageError):  # another kind of file
            continue
        if isinstance(config.data, dict):
            return Section(config, config.data)
    return None


def located(document: Document, name: str) -> Iterator[tuple[Path, str]]:
    """The files that a name in a file may mean, each as it lies and as it is shown: from the file's folder, from those
    above it as far as the project's, and from here."""
    shown_in = Path(document.name).parent
    above = [] if shown_in.is_absolute() or ".." in shown_in.parts else [*shown_in.parents]
    # It is shown as if it had been given, or found in a folder, like the file that names it.
    folders = [(document.path.parent, shown_in), *zip(document.path.parent.parents, above, strict=False)]
    for path, shown in [*((folder / name, seen / name) for folder, seen in folders), (Path(name), Path(name))]:
        try:
            if path.is_file():
                yield path, one_line(shown)
        except (OSError, ValueError):  # a name that no system takes
            continue


def replicas(config: Section) -> Place | None:
    """Where an accelerate config asks for copies of what is sharded, in `parallelism_config`; None if it doesn't."""
    section, key = config.section("parallelism_config"), "parallelism_config_dp_replicate_size"
    return section.source(key) if re.fullmatch(r"[2-9]|[1-9]\d{1,5}", str(section.get(key))) else None


def precision(config: Section, key: str, name: str) -> Iterator[Statement]:
    """The precision of a name that the key stands for."""
    name, source = name.lower(), config.source(key)
    if name in ("no", "none", "false", "bf16"):
        yield Statement("precision", frozenset(["bf16" if name == "bf16" else "fp32"]), source)
    elif name in ("fp16", "fp8"):
        yield Statement("precision", frozenset(PRECISIONS), source, f"{name} was not measured, only fp32 and bf16")


def fsdp(
    config: Section, source: Place, default: int | None, kind: str = "", replicas: Place | None = None
) -> Iterator[Statement]:
    """FSDP, from a table with or without the prefix ``fsdp_``; `kind` is a sharding that is named outside of it, and
    `replicas` where copies of the shards are asked for, which FSDP1 doesn't read."""
    keys = {str(key).removeprefix("fsdp_"): str(key) for key in config.data}

    def get(name: str, default: Any = None) -> Any:
        return config.data.get(keys.get(name, ""), default)

    version, reshard = get("version", default), get("reshard_after_forward")
    sharding = "sharding_strategy" if "sharding_strategy" in keys else "reshard_after_forward"
    where = config.source(keys["version"]) if "version" in keys else source
    word = get(sharding) if sharding == "sharding_strategy" or truth(reshard) is None else None
    word = re.sub(r"\W", "_", str(kind or word or "FULL_SHARD")).lower()
    possible = [each for each in ("1", "2") if str(version) in (each, "None")]
    names = frozenset[str]().union(
        *(
            configured(fsdp_version=each, sharding=word, reshard=truth(reshard), replicates=replicas)
            for each in possible
        )
    )
    if "2" in possible and replicas:
        where = where.with_text(str(replicas))
    if "1" in possible and sharding in keys:
        where = where.with_text(str(config.source(keys[sharding])))
    note = "" if names else "this way to shard was not measured"
    if truth(get("offload_params", get("cpu_offload"))):
        note = "FSDP with offloaded parameters was not measured, only without"
    yield Statement("strategy", names, where, note)
    if form := re.search(r"(SHARDED|FULL)_STATE_DICT", str(get("state_dict_type")).upper()):
        yield Statement(SHARDED, YES if form[1] == "SHARDED" else NO, config.source(keys["state_dict_type"]))
    if truth(get("activation_checkpointing")):  # accelerate's wrapper is non-reentrant, always
        yield Statement("checkpointing", frozenset(["non-reentrant"]), config.source(keys["activation_checkpointing"]))


def deepspeed_plugin(config: Section, source: Place) -> Iterator[Statement]:
    """The part of an accelerate config that is about DeepSpeed, or the file that it names."""
    stage = str(config.get("zero_stage") if "zero_stage" in config.data else "")
    if config.get("deepspeed_config_file"):
        yield from deepspeed_file(config, "deepspeed_config_file")
    elif stage in STAGES:
        offload = [part for part in ("optimizer", "param") if _offloaded(config.get(f"offload_{part}_device"))]
        names = configured(zero_stage=int(stage), offload=offload, bucket=None)
        yield Statement("strategy", names, config.source("zero_stage"))
        if "gradient_clipping" in config.data:
            yield Statement(NOT_CLIPPED, NO, config.source("gradient_clipping"))
        else:
            source = config.source("zero_stage").with_text("without gradient_clipping")
            yield Statement(NOT_CLIPPED, NO, source, since=("accelerate", AUTO_CLIPPING), before=YES, left_out=True)
        yield from accumulation(config)
    else:
        yield Statement("strategy", strategies_like(*DEEPSPEED), source, NO_STAGE if stage else "")


def deepspeed_file(config: Section, key: str) -> Iterator[Statement]:
    """A DeepSpeed config that another file names; if it isn't there, its name may say the stage."""
    name = str(config.get(key))
    if named := named_config(config.document, name):
        yield from deepspeed(named)
        return
    asked = asked_for([name])
    pattern = asked if asked and within(asked, DEEPSPEED) else DEEPSPEED
    yield Statement("strategy", strategies_like(*pattern), config.source(key))


def _number(value: object) -> int:
    """A whole number of a config; 1 for anything else, such as ``auto``."""
    return int(str(value)) if re.fullmatch(r"[1-9]\d{0,5}", str(value)) else 1


def _offloaded(device: object) -> bool:
    return str(device).lower() not in ("none", "", "false")


def deepspeed(config: Section) -> Iterator[Statement]:
    """A config of DeepSpeed."""
    zero = config.section("zero_optimization")
    stage, bucket, source = str(zero.data.get("stage", 0)), zero.get("reduce_bucket_size"), zero.source("stage", "0")
    if stage in STAGES:
        devices = {part: zero.section(f"offload_{part}").get("device") for part in ("optimizer", "param")}
        offload = [part for part, device in devices.items() if _offloaded(device)]
        if bucket is not None and not offload:
            small = ", which makes buckets smaller than the model" if bucket == "auto" and int(stage) else ""
            source = source.with_text(f"{zero.source('reduce_bucket_size')}{small}")
        hpz = _number(zero.get("zero_hpz_partition_size"))
        if hpz > 1 and stage == "3":
            source = source.with_text(str(zero.source("zero_hpz_partition_size")))
        names = configured(zero_stage=int(stage), offload=offload, bucket=bucket, hpz=hpz)
        yield Statement("strategy", names, source)
    else:
        yield Statement("strategy", strategies_like(*DEEPSPEED), source, NO_STAGE)
    if "gradient_clipping" in config.data:
        yield Statement(NOT_CLIPPED, NO, config.source("gradient_clipping"))
    else:
        source = config.source("zero_optimization").with_text("without gradient_clipping")
        yield Statement(NOT_CLIPPED, YES, source, left_out=True)
    yield from accumulation(config)
    for name in ("bf16", "fp16"):
        if truth(config.section(name).get("enabled")):
            yield from precision(config.section(name), "enabled", name)


def accumulation(config: Section) -> Iterator[Statement]:
    """Whether gradients are added up over several batches; nothing for `auto`, as another file then has it."""
    key = "gradient_accumulation_steps"
    if re.fullmatch(r"[1-9]\d{0,8}", str(config.get(key))):
        yield Statement("accumulation", YES if int(config.get(key)) > 1 else NO, config.source(key))
