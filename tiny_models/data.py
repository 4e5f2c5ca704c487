"""The small data sets of fixtures/, as token rows and as data sets for trainers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from tiny_models.tokenizer import tokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
ROWS = 4  # of the global batch

# What every GRPO cell shares: two completions of each prompt, four tokens long.
GRPO = {"num_generations": 2, "max_completion_length": 4, "use_vllm": False}


@functools.cache
def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()]


@functools.cache
def _text_ids() -> list[list[int]]:
    words = tokenizer()
    return [words(record["text"])["input_ids"] for record in records("text")]


def text_rows(step: int) -> list[list[int]]:
    """The token ids of one global batch: four rows of unequal length, other ones at every step."""
    rows = _text_ids()
    return [rows[(step * ROWS + i) % len(rows)] for i in range(ROWS)]


def text_dataset() -> Any:
    from datasets import Dataset

    return Dataset.from_list(records("text"))


def prompts() -> Any:
    from datasets import Dataset

    return Dataset.from_list(records("prompts"))


def count_vowels(completions: list[str], **_: Any) -> list[float]:
    """A reward that tells completions apart without a model."""
    return [sum((7 * ord(letter)) % 11 for letter in text) / 10 for text in completions]
