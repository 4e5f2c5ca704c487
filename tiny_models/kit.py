"""What most failures are made of: parts of a scenario, a text model with tokenizer and data, TRL's trainer of it."""

from __future__ import annotations

from typing import Any

from faultline.base.errors import Impossible
from faultline.scenario import (
    LR,
    MOMENTUM,
    Scenario,
    causal_lm_loss,
    checkpoint_layers,
    divergence,
    my_rows,
    next_token_loss,
    sgd,
    token_batch,
)
from tiny_models.data import (
    GRPO,
    letter_score,
    prompts,
    saved,
    text_batch,
    text_dataset,
    text_rows,
    token_dataset,
    turns,
    wait,
)
from tiny_models.qwen2 import add_lora, qwen2
from tiny_models.tokenizer import tokenizer

__all__ = [
    "GRPO",
    "LR",
    "MOMENTUM",
    "Impossible",
    "Scenario",
    "add_lora",
    "causal_lm_loss",
    "checkpoint_layers",
    "divergence",
    "letter_score",
    "my_rows",
    "next_token_loss",
    "prompts",
    "qwen2",
    "saved",
    "sft_trainer",
    "sgd",
    "text_batch",
    "text_dataset",
    "text_rows",
    "token_batch",
    "token_dataset",
    "tokenizer",
    "turns",
    "wait",
]


def sft_trainer(model: Any, arguments: dict[str, Any], padding_side: str = "right") -> Any:
    from trl import SFTConfig, SFTTrainer

    words = tokenizer(padding_side=padding_side)
    return SFTTrainer(model, SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
