"""What files of settings say of a training: what configs of engines say, and the arguments of trainers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from faultline import defaults, engines
from faultline.catalogue import failures
from faultline.engines import NO, YES, Told
from faultline.matrix import CHECKPOINTING
from faultline.projects import Document
from faultline.report import one_line

OWN = defaults.OWN  # a trainer that is none of those that the catalogue runs

# Keys of TrainingArguments, TRL's scripts, axolotl and LLaMA-Factory by which a file of arguments is known.
ARGUMENTS = frozenset(
    "output_dir per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps learning_rate "
    "lr_scheduler_type gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing fsdp fsdp_config "
    "deepspeed ddp_find_unused_parameters ddp_static_graph bf16 fp16 use_peft lora_r lora_rank lora_target_modules "
    "lora_target average_tokens_across_devices num_generations reward_funcs teacher_model_name_or_path lmbda "
    "micro_batch_size base_model adapter finetuning_type accelerate_config stage rlhf_type "
    "disable_gradient_checkpointing use_reentrant_gc".split()
)
# Keys that only DeepSpeed's configs have.
DEEPSPEED = frozenset(
    ["zero_optimization", "train_micro_batch_size_per_gpu", "steps_per_print", "wall_clock_breakdown"]
)
PARAMETERS = "lora_target_parameters"
SAVED = ("lora_modules_to_save", "modules_to_save", "additional_target")  # beside an adapter, whole
LORA = ("lora_r", "lora_rank", "lora_alpha", "lora_target_modules", "lora_target", "peft_config")
# Settings that only some of TRL's trainers have.
TELLING = {
    "reward_funcs": "grpo rloo",
    "num_generations": "grpo rloo gold iw_opd sdft sdpo",
    "steps_per_generation": "grpo rloo sdft sdpo",
    "lmbda": "gkd gold iw_opd",
    "seq_kd": "gkd gold",
    "use_uld_loss": "gold",
    "teacher_model_name_or_path": "gkd gold iw_opd distillation",
    "iw_opd_gamma": "iw_opd",
    "desirable_weight": "kto",
    "precompute_ref_log_probs": "dpo kto",
    "num_value_samples": "a2po",
    "distillation_topk": "sdft sdpo",
    "dataset_text_field": "sft gkd gold",
    "completion_only_loss": "sft gkd gold",
    "assistant_only_loss": "sft gkd gold",
    "packing": "sft gkd gold",
}
NAMED = ("trainer", "trainer_type", "trainer_class", "rlhf_type", "rl", "stage")
BETA = ("grpo", "rloo")  # where `beta` says whether there is a reference model


def told(document: Document) -> tuple[str, list[Told]] | None:
    """What a file says of the training, and of which kind it is; None where it is no file of settings."""
    data = document.data
    if not isinstance(data, dict):
        return None
    if "distributed_type" in data or "compute_environment" in data:
        return "accelerate", [*engines.accelerate(document, data)]
    if DEEPSPEED & data.keys():
        return "deepspeed", [*engines.deepspeed(document, data, ())]
    own = [(), *((key,) for key, value in data.items() if isinstance(key, str) and isinstance(value, dict))]
    parts = [path for path in own if ARGUMENTS & {*_inside(data, path)}]
    # The settings are the file itself, or one of its sections.
    return ("arguments", [*_arguments(document, _inside(data, parts[0]), parts[0])]) if parts else None


def trainers() -> frozenset[str]:
    """Every trainer of the catalogue, and one that is none of them."""
    return frozenset(v.trainer for failure in failures().values() for v in failure.variants if v.trainer) | {OWN}


def _inside(data: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    return data[path[0]] if path else data


def _arguments(document: Document, data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Told]:
    """TrainingArguments, TRL's script arguments, axolotl and LLaMA-Factory, as far as they are the same thing."""

    def place(key: str) -> str:
        return engines.source_of(document, *path, key, value=data[key])

    yield from _distribution(document, data, path)
    yield from _checkpointing(document, data, path)
    yield from _unnamed(data, place)
    if engines.truth(data.get("bf16")):
        yield from engines.precision(document, "bf16", (*path, "bf16"), True)
    elif engines.truth(data.get("fp16")):
        yield from engines.precision(document, "fp16", (*path, "fp16"), True)
    elif engines.truth(data.get("bf16")) is False and "fp16" in data:
        yield Told("precision", frozenset(["fp32"]), place("bf16"))
    yield from _adapter(data, place)
    yield from _adapted(data, place)
    found = [*_trainer(data, place)]
    found += [*_named_file(document, found)]
    yield from found
    left = frozenset.intersection(*(told.values for told in found)) if found else trainers()
    beta = data.get("beta")
    if isinstance(beta, (int, float)) and not isinstance(beta, bool) and (beta == 0 or left <= {*BETA}):
        yield Told("reference model", YES if beta else NO, place("beta"))
    elif left == {"sft"}:
        yield Told("reference model", NO, found[0].source)
    for key in ("average_tokens_across_devices", "precompute_ref_log_probs"):
        if (on := engines.truth(data.get(key))) is not None:
            yield Told(key, YES if on else NO, place(key))
    yield from engines.accumulation(document, data, path)
    norm = data.get("max_grad_norm")
    if isinstance(norm, (int, float)) and not isinstance(norm, bool):
        yield Told(defaults.NORM, frozenset([str(float(norm))]), place("max_grad_norm"))


def _distribution(document: Document, data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Told]:
    deepspeed, fsdp = data.get("deepspeed"), data.get("fsdp")
    if isinstance(deepspeed, dict):
        yield from engines.deepspeed(document, deepspeed, (*path, "deepspeed"))
    elif deepspeed and isinstance(deepspeed, str):
        yield from engines.deepspeed_file(document, deepspeed, (*path, "deepspeed"))
    if isinstance(data.get("accelerate_config"), str):  # of TRL's command line
        yield from engines.accelerate_named(document, data["accelerate_config"], (*path, "accelerate_config"))
    config, keys = engines.table(data, "fsdp_config"), (*path, "fsdp_config")
    place = document
    if isinstance(data.get("fsdp_config"), str):
        place = engines.beside(document, data["fsdp_config"]) or document
        config, keys = (place.data, ()) if place is not document else ({}, keys)
    config = {**config, **({"version": data["fsdp_version"]} if "fsdp_version" in data else {})}
    words = fsdp.split() if isinstance(fsdp, str) else [str(each) for each in fsdp] if isinstance(fsdp, list) else []
    asked = bool(words) and engines.truth(fsdp) is not False
    if asked or engines.truth(fsdp) or "fsdp_version" in data:
        kind = next((w for w in words if w.endswith("shard") or w.startswith(("shard_", "hybrid"))), "")
        source = engines.source_of(document, *path, "fsdp" if "fsdp" in data else "fsdp_version", value=fsdp)
        yield from engines.fsdp(place, config, keys, source, None, kind)
    # Both leave open whether DDP is what runs.
    others = engines.family("*") - engines.family("ddp*")
    for key, name in (("ddp_find_unused_parameters", "ddp-find-unused"), ("ddp_static_graph", "ddp-static-graph")):
        if (on := engines.truth(data.get(key))) is not None:
            ddp = {name} if on else engines.family("ddp*") - {name}
            yield Told("strategy", others | ddp, engines.source_of(document, *path, key, value=data[key]))


def _checkpointing(document: Document, data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[Told]:
    on = frozenset(["reentrant", "non-reentrant"])
    for key in ("gradient_checkpointing", "activation_checkpointing", "disable_gradient_checkpointing"):
        value = engines.truth(data.get(key))
        if value is None and key in data and isinstance(data[key], str) and data[key].lower() not in ("none", "auto"):
            value = True  # axolotl's "offload" and "unsloth"
        if value is not None:
            value = not value if key.startswith("disable") else value
            yield Told(
                "checkpointing",
                on if value else frozenset(["off"]),
                engines.source_of(document, *path, key, value=data[key]),
            )
    for key, told in (
        *(
            (k, engines.table(data, k).get("use_reentrant"))
            for k in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")
        ),
        ("use_reentrant_gc", data.get("use_reentrant_gc")),
    ):
        if (reentrant := engines.truth(told)) is not None:
            keys = (*path, key) if key == "use_reentrant_gc" else (*path, key, "use_reentrant")
            left = frozenset(CHECKPOINTING) - {"non-reentrant" if reentrant else "reentrant"}
            yield Told("checkpointing", left, engines.source_of(document, *keys, value=told))


def _unnamed(data: Mapping[str, Any], place: Any) -> Iterator[Told]:
    """Checkpointing without its mode, where transformers or TRL chooses it, unlike axolotl and LLaMA-Factory."""
    others = {"base_model", "datasets", "finetuning_type", "stage", "use_reentrant_gc"}
    key = next((k for k in ("gradient_checkpointing", "activation_checkpointing") if data.get(k) is True), "")
    given = any(data.get(f"{k}_kwargs") for k in ("gradient_checkpointing", "activation_checkpointing"))
    if key and not given and not others & data.keys():
        yield Told(defaults.UNNAMED, YES, place(key))


def _adapter(data: Mapping[str, Any], place: Any) -> Iterator[Told]:
    for key, none in (("adapter", (None, "", "none")), ("finetuning_type", ("full", "freeze"))):
        if key in data:
            yield Told("adapter", NO if data[key] in none else YES, place(key))
            return
    if (use := engines.truth(data.get("use_peft"))) is not None:
        yield Told("adapter", YES if use else NO, place("use_peft"))
    elif key := next((key for key in LORA if data.get(key)), ""):
        yield Told("adapter", YES, place(key))


def _adapted(data: Mapping[str, Any], place: Any) -> Iterator[Told]:
    """What an adapter adapts beside the weights of modules."""
    if PARAMETERS in data:
        yield Told("target_parameters", YES if data[PARAMETERS] else NO, place(PARAMETERS))
    if key := next((key for key in SAVED if key in data), ""):
        yield Told("trained head", YES if "lm_head" in str(data[key]) else NO, place(key))


def _trainer(data: Mapping[str, Any], place: Any) -> Iterator[Told]:
    """Which trainer the arguments are for: by its name, else by the settings that only some have."""
    for key in NAMED:
        text = re.sub(r"[\W_]", "", str(data.get(key) or "")).lower().removesuffix("trainer")
        found = _called([text]) if text else frozenset()
        if key == "stage" and text == "sft":
            found = frozenset()  # LLaMA-Factory's own trainer
        if text and (found or key in ("rl", "rlhf_type", "stage")):
            yield Told("trainer", found or frozenset([OWN]), place(key))
            return
    if "base_model" in data and "datasets" in data:
        yield Told("trainer", frozenset([OWN]), place("base_model"))  # axolotl's own trainer
        return
    for key, names in TELLING.items():
        if key in data:
            yield Told("trainer", _called(names.replace("_", "").split()), place(key))


def _named_file(document: Document, found: list[Told]) -> Iterator[Told]:
    """Where settings leave several trainers, the one of them that the file or its folder is named after."""
    if found:
        left = frozenset.intersection(*(told.values for told in found))
        named = left & _called(re.findall(r"[a-z0-9]+", document.name.lower()))
        if named and named != left:
            yield Told("trainer", named, f"{one_line(document.name)}:1 by its name")


def _called(words: Iterable[str]) -> frozenset[str]:
    """The catalogue's trainers of these names; it runs some in several ways, each with a name of its own."""
    known = {*words}
    return frozenset(t for t in trainers() - {OWN} if t.removesuffix("_on_policy").replace("_", "") in known)
