"""The statements of a project's configs and training arguments about its training."""

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from packaging.version import Version

from faultline.audit import adapters, defaults, engines, hydra
from faultline.audit.engines import NO, NORM, OTHER_TRAINER, UNKNOWN, UNNAMED, YES, Statement, truth
from faultline.base.axes import CHECKPOINTING
from faultline.base.text import one_line
from faultline.catalogue.loading import failures, settings
from faultline.observations.ranges import Range
from faultline.projects.documents import Document, Section
from faultline.strategies.naming import presets, switches
from faultline.trainers import TRL

# Keys of TrainingArguments, TRL's scripts, axolotl, LLaMA-Factory and ms-swift by which a file of arguments is known.
ARGUMENTS = frozenset(
    "output_dir per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps learning_rate "
    "lr_scheduler_type gradient_checkpointing gradient_checkpointing_kwargs activation_checkpointing fsdp fsdp_config "
    "deepspeed ddp_find_unused_parameters ddp_static_graph bf16 fp16 use_peft lora_r lora_rank lora_target_modules "
    "lora_target average_tokens_across_devices num_generations reward_funcs teacher_model_name_or_path lmbda "
    "micro_batch_size base_model adapter finetuning_type accelerate_config stage rlhf_type "
    "disable_gradient_checkpointing use_reentrant_gc train_type tuner_type".split()
)
# Keys that only DeepSpeed's configs have.
DEEPSPEED = frozenset(
    ["zero_optimization", "train_micro_batch_size_per_gpu", "steps_per_print", "wall_clock_breakdown"]
)
# Settings that only some of TRL's trainers have.
TRAINERS_BY_SETTING = {
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
SINCE = {name: Version(each.since) for name, each in TRL.items() if each.since}
SUBCLASS = "a trainer of one's own"  # whether the trainer's class is made of the one that is named
OF_FRAMEWORKS = ("rlhf_type", "rl", "stage")  # whose trainers are made of TRL's
TRAINER_KEYS = ("trainer", "trainer_type", "trainer_class", *OF_FRAMEWORKS)
BETA = frozenset(name for name, each in TRL.items() if each.by_beta)
OTHER = frozenset([OTHER_TRAINER])
OFF = frozenset(["off"])
MODES = frozenset(CHECKPOINTING) - OFF
# The axis that a switch is about, and the values that it leaves if it is on, or off.
SWITCHES = {
    **{key: ("strategy", on, off) for key, (on, off) in switches().items()},
    "gradient_checkpointing": ("checkpointing", MODES, OFF),
    "activation_checkpointing": ("checkpointing", MODES, OFF),
    "disable_gradient_checkpointing": ("checkpointing", OFF, MODES),
    "use_reentrant": ("checkpointing", OFF | {"reentrant"}, OFF | {"non-reentrant"}),
    "use_reentrant_gc": ("checkpointing", OFF | {"reentrant"}, OFF | {"non-reentrant"}),
}
KWARGS = ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs")


def read(document: Document) -> tuple[str, list[Statement]] | None:
    """The kind of a file of settings, and what it says of the training; None if it isn't one."""
    data = document.data
    if not isinstance(data, dict):
        return None
    whole = Section(document, data)
    if {"program", "parameters"} <= data.keys():  # a sweep of Weights & Biases
        return None
    if "distributed_type" in data or "compute_environment" in data:
        return "accelerate", [*engines.accelerate(whole)]
    if DEEPSPEED & data.keys():
        return "deepspeed", [*engines.deepspeed(whole)]
    if verl := hydra.of_config(document):
        return "arguments", [*hydra.stated(verl)]
    for section in (whole, *(whole.section(key) for key in data if isinstance(key, str))):
        if ARGUMENTS & section.data.keys():
            return "arguments", [*stated(section)]
    return None


@functools.cache
def trainers() -> frozenset[str]:
    """Every trainer of the catalogue, and the name for any other."""
    variants = (variant for failure in failures().values() for variant in failure.variants)
    return OTHER.union(variant.trainer for variant in variants if variant.trainer)


def stated(section: Section, framework: str = "", overrides: frozenset[str] = frozenset()) -> Iterator[Statement]:
    """The statements of TrainingArguments, TRL's script arguments, axolotl, LLaMA-Factory and ms-swift, as far as they
    are the same thing, and the defaults of the `framework`, but for those that its program `overrides`. Where a
    setting's value isn't known, nothing is concluded from others that it might overrule."""
    yield from defaults.stated(replace(section, unknown=section.unknown | overrides), framework)
    for read_part, keys in PARTS.items():
        if section.unknown.isdisjoint(keys):
            yield from read_part(section)
    trainer = [*_trainer(section)] if section.unknown.isdisjoint(TRAINER_KEYS) else []
    left = trainers().intersection(*(statement.values for statement in trainer))
    file = one_line(section.document.name)
    named = left & _trainers_named(re.findall(r"[a-z0-9]+", file.lower()))
    if trainer and named and named != left and all(each.shared for each in trainer):
        place = replace(section.document.place(1), text="by its name")
        trainer.append(Statement("trainer", named, place, shared=True))
        left = named
    yield from trainer
    beta, norm = _number(section.get("beta")), _number(section.get("max_grad_norm"))
    if beta is not None and (beta == 0 or left <= BETA):
        yield Statement("reference model", YES if beta else NO, section.source("beta"))
    elif left == {"sft"}:
        yield Statement("reference model", NO, trainer[0].source)
    if norm is not None or "max_grad_norm" in section.unknown:
        yield Statement(NORM, frozenset([UNKNOWN if norm is None else str(norm)]), section.source("max_grad_norm"))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 else None


def _switches(section: Section) -> Iterator[Statement]:
    every = SWITCHES | {key: (key, YES, NO) for key in settings()}
    for place in (section, *map(section.section, KWARGS)):
        for key, (axis, on, off) in every.items():
            value = place.get(key)
            switch = truth(value)
            if key.endswith("checkpointing") and isinstance(value, str) and value.lower() not in ("none", "auto"):
                switch = switch is not False  # axolotl's "offload" and "unsloth"
            if switch is not None:
                yield Statement(axis, on if switch else off, place.source(key))


def _distribution(section: Section) -> Iterator[Statement]:
    """The strategies that a named engine leaves."""
    if isinstance(section.get("deepspeed"), dict):
        yield from engines.deepspeed(section.section("deepspeed"))
    elif bundled := defaults.configs().get(str(section.get("deepspeed"))):
        stated = engines.deepspeed(Section(replace(section.document, text="", lines={}), bundled))
        yield from (replace(each, source=section.source("deepspeed")) for each in stated)
    elif section.get("deepspeed") and isinstance(section.get("deepspeed"), str):
        yield from engines.deepspeed_file(section, "deepspeed")
    if isinstance(section.get("accelerate_config"), str):  # of TRL's command line
        yield from engines.accelerate_named(section, "accelerate_config")
    yield from _fsdp(section)


def _fsdp(section: Section) -> Iterator[Statement]:
    """FSDP, whose config may be a table or a file of its own, or one that ms-swift knows by name."""
    fsdp, named = section.get("fsdp"), section.get("fsdp_config")
    if isinstance(fsdp, str) and fsdp in presets():
        yield Statement("strategy", engines.strategies_like(*presets()[fsdp]), section.source("fsdp"))
        return
    words = fsdp.split() if isinstance(fsdp, str) else [str(each) for each in fsdp] if isinstance(fsdp, list) else []
    if not ((words and truth(fsdp) is not False) or truth(fsdp) or "fsdp_version" in section.data):
        return
    config = (engines.named_config(section.document, named) if isinstance(named, str) else None) or section.section(
        "fsdp_config"
    )
    if "fsdp_version" in section.data:
        config = replace(config, data={**config.data, "version": section.get("fsdp_version")})
    kind = next((word for word in words if word.endswith("shard") or word.startswith(("shard_", "hybrid"))), "")
    yield from engines.fsdp(config, section.source("fsdp" if "fsdp" in section.data else "fsdp_version"), None, kind)


def _unnamed(section: Section) -> Iterator[Statement]:
    """Checkpointing without its mode, if transformers or TRL chooses that, and not another library."""
    others = {"base_model", "datasets", "stage", "use_reentrant_gc", *adapters.ADAPTERS}
    key = next((key for key in ("gradient_checkpointing", "activation_checkpointing") if truth(section.get(key))), "")
    if key and not others & section.data.keys() and not any(map(section.get, KWARGS)):
        yield Statement(UNNAMED, YES, section.source(key))


def _precision(section: Section) -> Iterator[Statement]:
    name = next((name for name in ("bf16", "fp16") if truth(section.get(name))), "")
    if name:
        yield from engines.precision(section, name, name)
    elif truth(section.get("bf16")) is False and "fp16" in section.data:
        yield Statement("precision", frozenset(["fp32"]), section.source("bf16"))
    elif section.get("torch_dtype") == "bfloat16" and {"train_type", "tuner_type"} & section.data.keys():
        yield from engines.precision(section, "torch_dtype", "bf16")  # ms-swift trains in the weights' precision


def _trainer(section: Section) -> Iterator[Statement]:
    """The trainer that the arguments are for: by its name, else by the settings that only some have."""
    for key in TRAINER_KEYS:
        given = section.get(key)
        each = [called(str(word or "")) for word in (given if isinstance(given, list) else [given])]
        # LLaMA-Factory has a trainer of its own for the stage "sft".
        names = frozenset[str]().union(*each) if all(each) and (key, given) != ("stage", "sft") else frozenset[str]()
        if names or (given and key in OF_FRAMEWORKS):
            made = section.data.get(SUBCLASS) or key in OF_FRAMEWORKS
            other = OTHER if made else frozenset[str]()  # it may do otherwise than its base
            yield Statement("trainer", (names or OTHER) | other, section.source(key))
            return
    if {"base_model", "datasets"} <= section.data.keys():  # axolotl's own trainer
        yield Statement("trainer", OTHER, section.source("base_model"))
        return
    if key := next((key for key in ("train_type", "tuner_type") if key in section.data), ""):  # ms-swift's own trainer
        yield Statement("trainer", OTHER, section.source(key))
        return
    for key, words in TRAINERS_BY_SETTING.items():
        if key in section.data:
            yield Statement(
                "trainer", _trainers_named(words.replace("_", "").split()), section.source(key), shared=True
            )


def of_release(statement: Statement, packages: Mapping[str, Range]) -> Statement:
    """A statement as the allowed releases have it: without the trainers that none of TRL's has, if any is left; and
    with what an older release leaves, if one is allowed."""
    package, first = statement.since
    asked = packages.get(package or "trl", Range())
    if package:
        if asked.reaches(Version(first)):
            return statement
        return replace(
            statement,
            values=statement.before if asked.below(Version(first)) else statement.values | statement.before,
            source=statement.source.with_text(f"which {package} sets since {first}"),
        )
    left = statement.values - {name for name, first in SINCE.items() if asked.below(first)}
    if not statement.shared or not left or left == statement.values:
        return statement
    return replace(statement, values=left, source=statement.source.with_text(f"with trl{asked.text}"))


def called(name: str) -> frozenset[str]:
    """The catalogue's trainers of a name, as people write it; it runs some in several ways, each with its own name."""
    text = re.sub(r"[\W_]", "", name).lower()
    return _trainers_named([text.removesuffix("trainer") or text])  # transformers' own has no other name


def _trainers_named(words: Iterable[str]) -> frozenset[str]:
    names = {*words}
    results = frozenset(t for t in trainers() - OTHER if t.removesuffix("_on_policy").replace("_", "") in names)
    return results | (OTHER & names)


# What reads a part of the arguments, with the settings that all of its conclusions depend on.
PARTS = {
    _distribution: ("deepspeed", "fsdp", "fsdp_config", "fsdp_version", "accelerate_config"),
    _switches: (),
    _unnamed: ("gradient_checkpointing", "activation_checkpointing", *KWARGS),
    _precision: ("bf16", "fp16"),
    adapters.stated: tuple(adapters.ADAPTERS),
    engines.accumulation: (),
}
