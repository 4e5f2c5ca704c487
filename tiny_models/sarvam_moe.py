"""Sarvam's mixture of experts, whose file has query, key and value as one weight."""

from __future__ import annotations

from functools import partial
from typing import Any

from transformers import AutoModelForCausalLM, SarvamMoEConfig

from tiny_models import build
from tiny_models.tokenizer import VOCAB_SIZE


def sarvam_moe(fused: bool = True) -> Any:
    """About 40k parameters; if it isn't `fused`, it is saved with the weights that it has."""
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.1}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1}
    layers = {"num_hidden_layers": 2, "first_k_dense_replace": 1, "use_cache": False}

    def make() -> Any:
        model = AutoModelForCausalLM.from_config(SarvamMoEConfig(**sizes, **heads, **experts, **layers))
        if not fused:
            model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
        return model

    return build(make, 0)
