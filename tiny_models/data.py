"""The small data sets of fixtures/, as token rows and as data sets for trainers."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import torch

from faultline.strategies import ROWS
from tiny_models import loaded
from tiny_models.tokenizer import LETTERS, VOCABULARY, tokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"

FIRST_LETTER = VOCABULARY.index(LETTERS[0])

# What every GRPO cell shares: two completions of each prompt, four tokens long.
GRPO = {"num_generations": 2, "max_completion_length": 4, "use_vllm": False}


@functools.cache
def records(name: str) -> list[dict[str, Any]]:
    """The lines of a file, as often as it takes for three global batches."""
    return [json.loads(line) for line in (FIXTURES / f"{name}.jsonl").read_text().splitlines()] * (ROWS // 4)


def text_rows(step: int) -> list[list[int]]:
    """The token ids of one global batch: rows of unequal length, other ones at every step."""
    texts = records("text")
    lines = [texts[(step * ROWS + row) % len(texts)]["text"] for row in range(ROWS)]
    return [[FIRST_LETTER + LETTERS.index(letter) for letter in line] for line in lines]


# In an exported file: what fails at once needs no text, and what is compared only rows that differ.
def random_rows(step: int) -> list[list[int]]:
    """The token ids of one global batch: random, of equal length."""
    return torch.randint(12, 48, (4, 32)).tolist()


def uneven_rows(step: int) -> list[list[int]]:
    """Four rows of random tokens, of unequal length, other ones at every step."""
    generator, widths = torch.Generator().manual_seed(step), range(20 + step, 40 + step, 5)
    return [torch.randint(12, 48, (width,), generator=generator).tolist() for width in widths]


def text_batch(number: int, rank: int, world_size: int) -> Any:
    """This rank's rows of one global batch, padded, as input_ids and labels [B, T]."""
    from faultline.scenario import token_batch

    return token_batch(text_rows(number), rank, world_size)


def image_text_batch(step: int, rank: int, world_size: int, images: str) -> dict[str, Any]:
    """Gemma3's inputs for this rank's rows, made by its processor, with labels and scale.

    `images` is ``none``; ``first half``: rows 0 and 1 of the four have one each;
    ``dummy``: every row has one whose tokens are not trained on, so that the
    vision tower always takes part; ``by step``: so it is in every second step.
    """
    from faultline.scenario import my_rows
    from tiny_models.gemma3 import processor

    rows = range(ROWS)
    shown = {"none": (), "first half": (0, 1), "dummy": rows, "by step": rows if step % 2 else ()}[images]
    texts = [records("image_text")[(step * ROWS + row) % len(records("image_text"))] for row in rows]
    inputs = processor()(
        text=[("<boi>" if row in shown else "") + texts[row]["text"] for row in rows],
        images=[[picture(texts[row]["colour"])] if row in shown else [] for row in rows] if shown else None,
        padding=True,
        padding_side="right",
        return_tensors="pt",
    )
    # Among these, the lines before and behind each image.
    special = torch.tensor([VOCABULARY.index(word) for word in ("<pad>", "<boi>", "<image>", "<eoi>", "\n")])
    labels = inputs["input_ids"].masked_fill(torch.isin(inputs["input_ids"], special), -100)
    names = "input_ids", "attention_mask", "token_type_ids"
    kept = {name: my_rows(inputs[name], rank, world_size) for name in names}
    if shown:
        pictures = [place for place, row in enumerate(shown) if row in my_rows(rows, rank, world_size)]
        if pictures:
            kept["pixel_values"] = inputs["pixel_values"][pictures]
    scale = world_size / int((labels[:, 1:] != -100).sum())
    return {"inputs": kept, "labels": my_rows(labels, rank, world_size), "scale": scale}


def picture(colour: list[int]) -> Any:
    """A plain image with one diagonal, so that no two patches are equal."""
    from PIL import Image

    image = Image.new("RGB", (16, 16), tuple(colour))
    for i in range(16):
        image.putpixel((i, i), (255 - colour[0], 16 * i, colour[2]))
    return image


def sliced_image_batch(step: int, rank: int, world_size: int, rows: int, slices: int) -> dict[str, Any]:
    """Rows of text with `slices` image slices each: input_ids, labels [B, T] and slices [B, S, 3, 8, 8].

    It has `rows` of each four of the global batch.
    """
    from faultline.scenario import my_rows, token_batch

    rows = rows * ROWS // 4
    generator = torch.Generator().manual_seed(step)
    pixels = torch.randn(rows, slices, 3, 8, 8, generator=generator)
    text = token_batch(text_rows(step)[:rows], rank, world_size)
    return {**text, "slices": my_rows(pixels, rank, world_size)}


def random_slices(step: int, rank: int, world_size: int, rows: int, slices: int) -> dict[str, Any]:
    """This rank's own random rows [B, T], with image slices [B, S, 3, 8, 8] each."""
    ids = torch.randint(12, 48, (rows // world_size, 32))
    text = {"input_ids": ids, "labels": ids, "scale": 1 / ids.numel()}
    return {**text, "slices": torch.randn(rows // world_size, slices, 3, 8, 8)}


def saved(model: Any, setup: Any, name: str = "model") -> Any:
    """The model, loaded from a folder that it was just saved to: it and the tokenizer can be loaded by name again."""
    path = Path(setup.folder) / name
    model.save_pretrained(path, is_main_process=setup.rank == 0)
    if setup.rank == 0:
        tokenizer().save_pretrained(path)
    wait()
    return loaded(type(model).from_pretrained(path))


def wait() -> None:
    """Until every rank is here."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


def text_dataset() -> Any:
    from datasets import Dataset

    return Dataset.from_list(records("text"))


def token_dataset(rows: list[list[int]], hidden: list[int]) -> Any:
    """Rows of token ids; of each, a trainer is not to learn the first ones, as many as `hidden` says."""
    from datasets import Dataset

    data = [{"input_ids": r, "labels": [-100] * n + r[n:]} for r, n in zip(rows, hidden, strict=True)]
    return Dataset.from_list(data)


def prompts() -> Any:
    from datasets import Dataset

    return Dataset.from_list(records("prompts"))


def letter_score(completions: list[str], **_: Any) -> list[float]:
    """A reward that differs for any two completions, without a model."""
    return [sum((7 * ord(letter)) % 11 for letter in text) / 10 for text in completions]


def turns(columns: str, letters: int | None = None) -> Any:
    """Each line of text as a prompt, or its first `letters`, and a completion of 12, in a trainer's columns."""
    from datasets import Dataset

    rows: list[dict[str, Any]] = []
    for record in records("text"):
        first, second, rest = record["text"].split(" ", 2)
        prompt = f"{first} {second}"[:letters]
        completion = f" {rest}"[:12]
        row = {
            "prompt": prompt,
            "completion": completion,
            "label": len(rows) % 2 == 0,
            "chosen": completion,
            "rejected": completion[::-1],
            "reference": completion[6:] + completion[:6],
            "privileged_context": completion,
            "messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}],
        }
        rows.append({column: row[column] for column in columns.split()})
    return Dataset.from_list(rows)
