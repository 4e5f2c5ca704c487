"""The settings of verl: words of its Hydra commands, as `+actor_rollout_ref.actor.strategy=fsdp2`, and YAML."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from faultline.audit.engines import NO, OTHER_TRAINER, YES, Statement, truth
from faultline.base.text import one_line
from faultline.projects.documents import Document, Place, Table, table
from faultline.strategies.naming import configured

WORD = re.compile(r"\+{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
# Where its trainers have the settings of the engine and those of the model.
PARTS = (("actor_rollout_ref.actor", "actor_rollout_ref.model"), ("engine", "model"), ("model", "model"))
SHARDED = {"fsdp": "1", "fsdp2": "2"}
CONFIGS = {"verl.trainer.main_ppo": "ppo_trainer.yaml", "verl.trainer.fsdp_sft_trainer": "sft_trainer.yaml"}
Settings = Mapping[str, tuple[object, Place]]
"""The values by their keys with dots, each with its place."""


def config_of(words: Sequence[str], flags: Mapping[str, object]) -> str:
    """The config that a command names, or that its program takes from the project's own copy of verl."""
    if "config_name" in flags:
        return f"{flags.get('config_path', '.')}/{str(flags['config_name']).removesuffix('.yaml')}.yaml"
    return next((f"verl/trainer/config/{CONFIGS[word]}" for word in words if word in CONFIGS), "")


def of_words(words: Iterable[str], document: Document) -> Settings:
    """The settings that a command's words give; the last one of a key counts."""
    given = [match for word in words if (match := WORD.fullmatch(word))]
    return {match[1]: (match[2], _place(document, match[1], match[2])) for match in given}


def _place(document: Document, key: str, value: str) -> Place:
    return replace(document.line(max(document.text.find(f"{key}="), 0)), text=one_line(f"{key}={value}")[:80])


def of_config(document: Document) -> Settings:
    """The settings of a config in YAML; none of one that isn't verl's."""
    data = document.data if isinstance(document.data, dict) else {}
    if "actor_rollout_ref" not in data and "partial_pretrain" not in table(data, "model"):
        return {}
    return {".".join(path): (value, replace(document.at(*path), text=path[-1])) for path, value in _flat(data)}


def _flat(data: Table, *above: str) -> Iterator[tuple[tuple[str, ...], object]]:
    """The values of tables within tables, each with its keys."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _flat(value, *above, str(key))
        else:
            yield (*above, str(key)), value


def stated(settings: Settings) -> Iterator[Statement]:
    """The statements of settings about the actor, or the model that is fine-tuned; nothing where they are none of
    verl's."""
    sft = "model.partial_pretrain" in settings or "engine" in settings
    for engine, model in PARTS if sft else PARTS[:1]:
        if keys := [key for key in settings if key.partition(".")[0] == engine.partition(".")[0]]:
            yield Statement("trainer", frozenset([OTHER_TRAINER]), settings[keys[0]][1])
            yield from _engine(settings, engine)
            yield from _model(settings, model)
            return


def _engine(settings: Settings, part: str) -> Iterator[Statement]:
    name, place = settings.get(f"{part}.strategy") or settings.get("engine") or ("$", Place(""))
    if "$" in str(name):
        return
    size, _ = settings.get(f"{part}.fsdp_config.fsdp_size") or settings.get(f"{part}.fsdp_size") or ("-1", place)
    reshard, _ = settings.get(f"{part}.fsdp_config.reshard_after_forward") or (None, place)
    # As many shards as there are ranks are no copies, and nobody says how many ranks there are.
    names = [
        configured(
            fsdp_version=SHARDED.get(str(name), ""), sharding=sharding, reshard=truth(reshard), replicates=copies
        )
        for sharding, copies in (("full_shard", False), ("hybrid_shard", True))[: 1 if str(size) == "-1" else 2]
    ]
    left = frozenset[str]().union(*names)
    yield Statement("strategy", left, place, "" if left else f"verl's {one_line(name)} was not measured")


def _model(settings: Settings, part: str) -> Iterator[Statement]:
    value, place = settings.get(f"{part}.enable_gradient_checkpointing") or (None, Place(""))
    if (switch := truth(value)) is not None and f"{part}.enable_activation_offload" not in settings:
        yield Statement("checkpointing", frozenset(["non-reentrant" if switch else "off"]), place)
    rank, place = settings.get(f"{part}.lora_rank") or (None, Place(""))
    if re.fullmatch(r"\d{1,6}", str(rank)):
        yield Statement("adapter", YES if int(str(rank)) else NO, place)
