"""Training arguments about adapters, such as LoRA."""

from collections.abc import Iterator

from faultline.audit.engines import NO, YES, Statement, truth
from faultline.projects.documents import Section

PARAMETERS = "lora_target_parameters"
SAVED = ("lora_modules_to_save", "modules_to_save", "additional_target")  # beside an adapter, whole
LORA = ("lora_r", "lora_rank", "lora_alpha", "lora_target_modules", "lora_target", "peft_config")
RANKS = ("lora_r", "lora_rank")  # 0 is no adapter
ADAPTERS: dict[str, tuple[object, ...]] = {  # settings that name a kind of adapter, and the kinds that are none
    "adapter": (None, "", "none"),
    "finetuning_type": ("full", "freeze"),
    "train_type": ("full",),  # of ms-swift 3
    "tuner_type": ("full",),  # of ms-swift 4
}
NOT_PEFT = ("llamapro", "reft")  # which train new blocks, or what layers return


def _switches_lora(key: str) -> bool:
    """Whether a setting switches adapters on: TRL's `use_peft`, LLaVA's `lora_enable` and the like."""
    words = {*key.lower().split("_")}
    adapters, verbs = {"lora", "qlora", "peft"}, {"use", "enable", "enabled", "tune", "train"}
    return bool(words & adapters and words & verbs) and words <= adapters | verbs


def stated(section: Section) -> Iterator[Statement]:
    """Whether there is an adapter, and what it adapts beside the weights of modules."""
    if any(map(_switches_lora, section.unknown)):
        return
    switches = [key for key in section.data if isinstance(key, str) and _switches_lora(key)]
    switch = next((key for key in switches if truth(section.get(key))), next(iter(switches), ""))
    use = truth(section.get(switch))
    if key := next((key for key in ADAPTERS if key in section.data), ""):
        if section.get(key) not in NOT_PEFT:
            yield Statement("adapter", NO if section.get(key) in ADAPTERS[key] else YES, section.source(key))
    elif use is not None:
        yield Statement("adapter", YES if use else NO, section.source(switch))
    elif key := next((key for key in RANKS if section.get(key) == 0), ""):
        yield Statement("adapter", NO, section.source(key))
    elif key := next((key for key in LORA if section.get(key)), ""):
        # The mode of somebody's own script.
        full = next((key for key in section.data if section.get(key) == "full"), "")
        yield Statement("adapter", NO if full else YES, section.source(full or key))
    if PARAMETERS in section.data:
        yield Statement("target_parameters", YES if section.get(PARAMETERS) else NO, section.source(PARAMETERS))
    if key := next((key for key in SAVED if key in section.data), ""):
        head = "lm_head" in str(section.get(key))
        yield Statement("trained head", YES if head else NO, section.source(key))
