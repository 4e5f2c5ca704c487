"""What a log tells of the run that it is of: the strategy, the checkpointing mode, the versions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from faultline import strategies
from faultline.logs import Line
from faultline.matrix import CHECKPOINTING, matches

MOST = 400  # lines that are kept for what else they tell
ENOUGH = 20_000  # lines that are searched for versions

# Words of a line, and the strategies that it leaves, as patterns. A traceback's own frames and the message of a reducer
# say what ran; settings say what was asked for, which need not be what ran.
RAN = (
    (re.compile(r"find_unused_parameters=True` is enabled"), ("ddp-find-unused",)),
    (re.compile(r"Expected to have finished reduction|Expected to mark a variable ready only once"), ("ddp*",)),
    (re.compile(r"deepspeed/runtime/zero/(?:stage3|parameter_offload|partition\w*)\.py"), ("zero3*",)),
    (re.compile(r"deepspeed/runtime/zero/stage_1_and_2\.py"), ("zero1*", "zero2*")),
    (re.compile(r"deepspeed/runtime/(?:engine|bf16_optimizer|fp16)"), ("zero*",)),
    (re.compile(r"fsdp/_fully_shard|_fsdp_param|FSDPModule"), ("fsdp2*",)),
    (re.compile(r"fsdp/(?:fully_sharded_data_parallel|_runtime_utils|_flat_param|_unshard_param_utils)"), ("fsdp1*",)),
    (re.compile(r"nn/parallel/distributed\.py|DistributedDataParallel\("), ("ddp*",)),
)
ASKED = (
    (
        re.compile(
            r"zero_stage['\"]?[=: ]{1,3}(\d)|['\"]stage['\"]: ?(\d)|[Zz]e[Rr][Oo][-_ ]?(?:[Ss]tage[-_ ]?)?([0-3])\b|"
            r"ds_z(\d)|\bz(\d)_(?:offload_)?config"
        ),
        (),
    ),
    (re.compile(r"fsdp_version['\"]?[=: ]{1,3}2|FSDP2\b|fsdp2\b"), ("fsdp2*",)),
    (re.compile(r"fsdp_version['\"]?[=: ]{1,3}1|FullyShardedDataParallel|--fsdp\b"), ("fsdp1*", "fsdp2*")),
    (re.compile(r"DistributedType\.FSDP|distributed_type: FSDP|\bFSDP\b"), ("fsdp*",)),
    (re.compile(r"DistributedType\.DEEPSPEED|distributed_type: DEEPSPEED|DeepSpeedEngine|--deepspeed\b"), ("zero*",)),
    (re.compile(r"distributed_type: (?:MULTI_GPU|MULTI_CPU)|DistributedType\.MULTI"), ("ddp*",)),
    # In DDP's arguments, unlike in the message that recommends it.
    (
        re.compile(r"(?<!argument )find_unused_parameters['\"]?[=: ]{1,3}True(?!`|\W{1,3}to\b)"),
        ("ddp-find-unused",),
    ),
)
MODES = (
    (re.compile(r"use_reentrant['\"]?[=: ]{1,3}True|requires_grad=True\. Gradients will be None"), ("reentrant",)),
    (re.compile(r"use_reentrant['\"]?[=: ]{1,3}False"), ("non-reentrant",)),
    (re.compile(r"checkpoint(?:ing)?\.py\", line \d{1,6}, in backward"), ("reentrant",)),
    (
        re.compile(r"checkpoint\.py\", line \d{1,6}, in (?:unpack_hook|recompute_fn|check_recomputed)"),
        ("non-reentrant",),
    ),
    (re.compile(r"gradient_checkpointing['\"]?[=: ]{1,3}False"), ("off",)),
    (
        re.compile(
            r"gradient_checkpointing['\"]?[=: ]{1,3}True|incompatible with gradient checkpointing|"
            r"gradient_checkpointing_enable|torch\.utils\.checkpoint|utils/checkpoint\.py|--gradient_checkpointing"
        ),
        ("reentrant", "non-reentrant"),
    ),
)
_LINE = re.compile(
    "|".join(pattern.pattern for pattern, _ in (*RAN[:1], *ASKED, *MODES)) + r"|DistributedDataParallel\(|"
    r"\btrl/|[gG]radient[_ ]checkpointing|ref_model|teacher|[dD]istill|\bGKD|GOLD|LoRA|lora|[Pp]eft|generate\b|"
    r"prepare_model|vision_(?:tower|model)|mm_projector|multi_?modal_?projector|did not receive grad|[gG]emma|"
    r"[lL]la[vV]a|LLaVA|target_parameters|tie_word_embeddings|tie_weights|[tT]ied (?:weights|embeddings)|"
    r"GatheredParameters|lm_head\.weight|[uU]n_?fr(?:ee|o)z|requires_grad_?\(True|static_graph|evaluation_mode|"
    r"save_(?:state|model|pretrained|checkpoint)|ckpt: torch|with shape torch|_STATE_DICT|\.distcp\b|pytorch_model_fsdp"
)
TELLING = (
    r"DeepSpeed|deepspeed|Deepspeed|DEEPSPEED|zero|ZeRO|Zero|ZERO|stage|ds_z|z\d_|FSDP|fsdp|DDP|ddp|Distributed|"
    r"distributed|Fully|fully|Checkpoint|checkpoint|reentrant|requires_grad|LoRA|lora|Lora|peft|PEFT|Peft|ref_model|"
    r"Teacher|teacher|generate|torch|Torch|transformers|Transformers|trl|TRL|accelerate|Accelerate|prepare_model|"
    r"vision_|projector|receive grad|emma|lla[vV]a|Lla[vV]a|LLaVA|find_unused|Distill|distill|GKD|gkd|GOLD|"
    r"target_par|tie_w|tied |Tied |GatheredP|lm_head\.w|nfr[eo]|n_fr[eo]|static_graph|evaluation_mode|save_[smpc]|"
    r"distcp|STATE_D"
)
"""What a line has, in any of the usual spellings, if it is of interest. Each begins with a letter of its own, which is
what makes the search fast: so does every pattern here that is looked for in whole logs."""
_TELLS = re.compile(TELLING)
_NAME = re.compile(r"\b(py)?(torch|transformers|trl|peft|accelerate|deepspeed)\b(?!/)", re.IGNORECASE)
_VERSION = re.compile(
    r"(?:_version)?[`'\"\])]{0,2}(?: info| version)?[ .=:@\"'v]{1,60}(?:version=)?(\d{1,3}\.\d{1,3}(?:\.\w{1,8}){0,3})"
)


SET = {"reentrant": "use_reentrant=True", "non-reentrant": "use_reentrant=False"}
"""How settings word a checkpointing mode."""


def in_place(text: str, strategy: str, mode: str) -> str:
    """What a cell printed, with its place in the words in which a log would tell it."""
    return f"{text}\n{strategy}\n{SET.get(mode, '')}"


@dataclass(frozen=True)
class Hints:
    """What is known of a run; an empty axis is not known. `context` is the text that may tell more, a line each;
    `asked` is such text of the options, which is no evidence."""

    strategies: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    versions: dict[str, str] = field(default_factory=dict)
    context: str = ""
    asked: str = ""


class Collector:
    """Keeps those lines of a log that tell something of its run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.versions: dict[str, str] = {}
        self._left = ENOUGH

    @property
    def full(self) -> bool:
        """Whether no line can add anything any more."""
        return self._left <= 0

    def take(self, line: Line) -> None:
        if self.full:
            return
        text = line.text[:2000]
        if not _TELLS.search(text):
            return
        self._left -= 1
        if len(self.lines) < MOST and _LINE.search(text):
            self.lines.append(text[:500])
        for match in _NAME.finditer(text):
            told = _VERSION.match(text, match.end(), match.end() + 130)
            if told:
                self.versions[match[2].lower()] = told[1]

    def hints(self, error: str) -> Hints:
        """What the lines and an error's text with its traceback tell; a traceback outranks settings."""
        own = error.splitlines()
        ran, asked = _narrowed(own, RAN) or _narrowed(self.lines, RAN[:1]), asked_for(self.lines)
        if not ran or (asked and _within(asked, ran)):
            ran = asked
        modes = _narrowed(own, MODES) or _narrowed(self.lines, MODES)
        known = frozenset(name for name in strategies.names() if ran and matches(name, ran))
        context = "\n".join((*own, *self.lines))
        return Hints(known, frozenset(m for m in CHECKPOINTING if m in modes), self.versions, context)


def _narrowed(texts: Iterable[str], table: Iterable[tuple[re.Pattern[str], tuple[str, ...]]]) -> tuple[str, ...]:
    """What the first pattern of a table that is found in any of the texts stands for."""
    kept = list(texts)
    return next((names for pattern, names in table if any(pattern.search(text) for text in kept)), ())


def asked_for(texts: Iterable[str]) -> tuple[str, ...]:
    """The strategies that settings name; nothing where they name several."""
    found: set[tuple[str, ...]] = set()
    for text in texts:
        for pattern, names in ASKED:
            if match := pattern.search(text):
                stage = next(filter(None, match.groups()), "") if match.groups() else ""
                found.add((f"zero{stage}*",) if stage else names)
                break
    narrow = {names for names in found if not any(other != names and _within(other, names) for other in found)}
    return narrow.pop() if len(narrow) == 1 else ()


def _within(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether all that one matches is matched by the other."""
    return all(matches(name, other) for name in strategies.names() if matches(name, one))
