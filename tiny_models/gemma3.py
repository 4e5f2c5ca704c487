"""Gemma3ForConditionalGeneration with its SigLIP vision tower and projector, and its processor."""

from __future__ import annotations

import functools
from typing import Any

from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from tiny_models import build
from tiny_models.tokenizer import SPECIAL, VOCAB_SIZE, tokenizer

IMAGE_SIZE = 16
TOKENS_PER_IMAGE = 4


def config() -> Gemma3Config:
    return Gemma3Config(
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": 64,
            "layer_types": ["sliding_attention"],
            "max_position_embeddings": 512,
            "query_pre_attn_scalar": 8,
            "initializer_range": 0.1,
            "pad_token_id": SPECIAL.index("<pad>"),
            "bos_token_id": SPECIAL.index("<bos>"),
            "eos_token_id": SPECIAL.index("<eos>"),
            "use_cache": False,
        },
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": IMAGE_SIZE,
            "patch_size": 4,
            "vision_use_head": False,
        },
        mm_tokens_per_image=TOKENS_PER_IMAGE,
        boi_token_index=SPECIAL.index("<boi>"),
        eoi_token_index=SPECIAL.index("<eoi>"),
        image_token_index=SPECIAL.index("<image>"),
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
        initializer_range=0.1,
    )


def gemma3(seed: int = 0) -> Gemma3ForConditionalGeneration:
    """About 14k parameters, a quarter of them in the vision tower and projector."""
    return build(new_gemma3, seed)


def new_gemma3() -> Gemma3ForConditionalGeneration:
    """A model whose projection starts at random: transformers leaves it at zero, through which no gradient would reach
    the vision tower in the first step."""
    model = Gemma3ForConditionalGeneration(config())
    for name, parameter in model.named_parameters():
        if name.endswith("mm_input_projection_weight"):
            parameter.data.normal_(std=0.1)
    return model


@functools.cache
def processor() -> Any:
    """Turns text and images into the model's inputs, as Gemma3's own processor does."""
    from transformers import Gemma3ImageProcessor, Gemma3Processor

    images = Gemma3ImageProcessor(size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}, do_pan_and_scan=False)
    words = tokenizer()
    return Gemma3Processor(images, words, chat_template=words.chat_template, image_seq_length=TOKENS_PER_IMAGE)
