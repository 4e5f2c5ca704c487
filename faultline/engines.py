"""What configs say of the engine that trains: accelerate's, DeepSpeed's, and the settings of FSDP."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline import hints, projects, strategies
from faultline.errors import UsageError
from faultline.matrix import PRECISIONS, matches
from faultline.projects import Document
from faultline.report import one_line

YES, NO = frozenset(["yes"]), frozenset(["no"])


NO_STAGE = "the stage is none of 0, 1, 2 and 3, so any of them may be what runs"


@dataclass(frozen=True)
class Told:
    """What one place says of one axis, which may be one of catalogue.NEEDS with YES or NO: the values that it leaves.

    `note` says so where they are none that was measured.
    """

    axis: str
    values: frozenset[str]
    source: str
    note: str = ""


def source_of(document: Document, *keys: str, value: Any = None) -> str:
    """The place of a key, and how it stands there: ``train.yaml:3 bf16: true``."""
    shown = "" if value is None or isinstance(value, (dict, list)) else one_line(value)[:60]
    shown = shown.lower() if isinstance(value, bool) else shown
    return f"{document.at(*keys)} {one_line(keys[-1])}" + (f": {shown}" if shown else "")


def family(*patterns: str) -> frozenset[str]:
    return frozenset(name for name in strategies.names() if matches(name, patterns))


def truth(value: Any) -> bool | None:
    """What a switch says, which configs also write as a text; None for anything else, such as ``auto``."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text)


def accelerate(document: Document, data: Mapping[str, Any]) -> Iterator[Told]:
    """A config of `accelerate launch`."""
    kind = str(data.get("distributed_type", "")).upper().rpartition(".")[2]
    source = source_of(document, "distributed_type", value=kind)
    if kind in ("NO", "FALSE"):  # YAML takes a NO without quotes for false
        yield Told("strategy", frozenset(["single"]), source)
    elif kind.startswith("MULTI_"):
        yield Told("strategy", family("ddp*"), source)
    elif kind == "FSDP":
        yield from fsdp(document, table(data, "fsdp_config"), ("fsdp_config",), source, default=1)
    elif kind == "DEEPSPEED":
        yield from _deepspeed_plugin(document, table(data, "deepspeed_config"), source)
    elif kind:
        yield Told("strategy", frozenset(), source, f"{one_line(kind)} was not measured")
    if "mixed_precision" in data:
        yield from precision(document, data["mixed_precision"], ("mixed_precision",))


def accelerate_named(document: Document, value: str, path: tuple[str, ...]) -> Iterator[Told]:
    """An accelerate config that TRL's command line is given: one of its own by name, or a file."""
    source = source_of(document, *path, value=value)
    own = {"multi_gpu": family("ddp*"), "single_gpu": family("single"), "fsdp1": family("fsdp1-full")}
    own |= {"fsdp2": family("fsdp2"), **{f"zero{stage}": _zero(stage, [], None) for stage in (1, 2, 3)}}
    if value in own:
        yield Told("strategy", own[value], source)
        return
    if found := beside(document, value):
        yield from accelerate(found, found.data)


def beside(document: Document, name: str) -> Document | None:
    """A file of settings that another one names, from its own folder or from here; None where there is none."""
    for place in (document.path.parent / name, Path(name)):
        try:
            found = projects.read(place, _shown(document, name, place)) if place.is_file() else None
        except (OSError, ValueError, UsageError):  # a name that no system takes, or a file that is none of settings
            continue
        if found and isinstance(found.data, dict):
            return found
    return None


def _shown(document: Document, name: str, place: Path) -> str:
    """How a file that another one names is shown: as if it had been given, or found in a folder, like that one."""
    return one_line(place if place == Path(name) else Path(document.name).parent / name)


def precision(document: Document, value: Any, keys: tuple[str, ...], shown: Any = None) -> Iterator[Told]:
    """What a precision's name says; `shown` is what stands at its place, where that isn't the name."""
    source = source_of(document, *keys, value=value if shown is None else shown)
    text = str(value).lower()
    if text in ("no", "none", "false", "bf16"):
        yield Told("precision", frozenset(["bf16" if text == "bf16" else "fp32"]), source)
    elif text in ("fp16", "fp8"):
        yield Told("precision", frozenset(PRECISIONS), source, f"{text} was not measured, only fp32 and bf16")


def fsdp(
    document: Document,
    config: Mapping[str, Any],
    path: tuple[str, ...],
    source: str,
    default: int | None,
    kind: str = "",
) -> Iterator[Told]:
    """FSDP from a table with or without the prefix ``fsdp_``; `kind` is what else names the sharding."""
    plain = {str(key).removeprefix("fsdp_"): (str(key), value) for key, value in config.items()}
    key, version = plain.get("version", ("", default))
    reshard_key, reshard = plain.get("reshard_after_forward", ("", None))
    sharding_key, sharding = plain.get("sharding_strategy", (reshard_key, reshard if truth(reshard) is None else None))
    where = source_of(document, *path, key, value=version) if key else source
    names: set[str] = set()
    if str(version) in ("2", "None"):
        names.add("fsdp2-no-reshard" if truth(reshard) is False else "fsdp2")
    if str(version) in ("1", "None"):
        word = re.sub(r"\W", "_", str(kind or sharding or "FULL_SHARD")).lower()
        measured = {
            "full_shard": "full",
            "1": "full",
            "shard_grad_op": "grad-op",
            "2": "grad-op",
            "no_shard": "no-shard",
        }
        if (measured | {"3": "no-shard"}).get(word):
            names.add(f"fsdp1-{(measured | {'3': 'no-shard'})[word]}")
        where = f"{where}, {source_of(document, *path, sharding_key, value=sharding)}" if sharding_key else where
    note = "" if names else "this way to shard was not measured"
    if truth(plain.get("offload_params", plain.get("cpu_offload", ("", False)))[1]):
        note = "FSDP with its parameters offloaded was not measured, only without"
    yield Told("strategy", frozenset(names), where, note)
    key, saved = plain.get("state_dict_type", ("", ""))
    if told := re.search(r"(SHARDED|FULL)_STATE_DICT", str(saved).upper()):
        sharded = YES if told[1] == "SHARDED" else NO
        yield Told("sharded state dict", sharded, source_of(document, *path, key, value=saved))
    key, wrapped = plain.get("activation_checkpointing", ("", None))
    if truth(wrapped):  # accelerate's wrapper is non-reentrant, always
        yield Told("checkpointing", frozenset(["non-reentrant"]), source_of(document, *path, key, value=wrapped))


def _deepspeed_plugin(document: Document, config: Mapping[str, Any], source: str) -> Iterator[Told]:
    """The part of an accelerate config that is about DeepSpeed, or the file that it names."""
    if config.get("deepspeed_config_file"):
        path = ("deepspeed_config", "deepspeed_config_file")
        yield from deepspeed_file(document, config["deepspeed_config_file"], path)
        return
    stage = str(config.get("zero_stage", ""))
    if stage in ("0", "1", "2", "3"):
        offload = [part for part in ("optimizer", "param") if _offloaded(config.get(f"offload_{part}_device"))]
        where = source_of(document, "deepspeed_config", "zero_stage", value=stage)
        yield Told("strategy", _zero(int(stage), offload, None), where)
        yield Told("no gradient_clipping", NO, where)  # accelerate writes it, or "auto"
        yield from accumulation(document, config, ("deepspeed_config",))
    else:
        yield Told("strategy", family("zero*"), source, NO_STAGE if stage else "")


def deepspeed_file(document: Document, value: Any, path: tuple[str, ...]) -> Iterator[Told]:
    """A DeepSpeed config that another file names; where it isn't there, its name may say the stage."""
    source = source_of(document, *path, value=value)
    if found := beside(document, str(value)):
        yield from deepspeed(found, found.data, ())
        return
    named = hints.asked_for([str(value)])
    yield Told("strategy", family(*(named if named and named[0].startswith("zero") else ("zero*",))), source)


def _offloaded(device: Any) -> bool:
    return str(device).lower() not in ("none", "", "false")


def _zero(stage: int, offload: list[str], bucket: Any) -> frozenset[str]:
    """The strategies of a stage: which bucket is smaller than the model can't be told without the model.

    ``auto`` is the square of the hidden size in transformers, and so smaller.
    """
    if stage == 3 and "param" in offload:
        return frozenset(["zero3-offload-param"])
    if stage in (2, 3) and offload:
        return frozenset([f"zero{stage}-offload"])
    small = {f"zero{stage}-small"}
    return frozenset(small if bucket == "auto" and stage else {f"zero{stage}", *small})


def deepspeed(document: Document, data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Told]:
    zero = table(data, "zero_optimization")
    stage = str(zero.get("stage", 0))
    source = source_of(document, *path, "zero_optimization", "stage", value=stage)
    if stage in ("0", "1", "2", "3"):
        parts = {part: zero.get(f"offload_{part}") for part in ("optimizer", "param")}
        offload = [p for p, v in parts.items() if isinstance(v, dict) and _offloaded(v.get("device", "none"))]
        bucket = zero.get("reduce_bucket_size")
        if bucket is not None and not offload:
            source += f", {source_of(document, *path, 'zero_optimization', 'reduce_bucket_size', value=bucket)}"
        yield Told("strategy", _zero(int(stage), offload, bucket), source)
    else:
        yield Told("strategy", family("zero*"), source, NO_STAGE)
    clips = "gradient_clipping" in data
    where = source_of(document, *path, *(["gradient_clipping"] if clips else ["zero_optimization"]))
    yield Told("no gradient_clipping", NO if clips else YES, where if clips else f"{where}, without gradient_clipping")
    yield from accumulation(document, data, path)
    for name in ("bf16", "fp16"):
        if truth(table(data, name).get("enabled")):
            yield from precision(document, name, (*path, name, "enabled"), True)


def accumulation(document: Document, data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Told]:
    """Whether gradients are added up over several batches; nothing of `auto`, which is what another file says."""
    key = "gradient_accumulation_steps"
    if re.fullmatch(r"[1-9]\d{0,8}", str(data.get(key))):
        steps = int(data[key])
        yield Told("accumulation", YES if steps > 1 else NO, source_of(document, *path, key, value=steps))


def table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = data.get(key)
    return found if isinstance(found, dict) else {}
