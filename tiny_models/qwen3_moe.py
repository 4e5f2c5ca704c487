"""Qwen3MoeForCausalLM, whose experts are fused into one parameter for each matrix."""

from __future__ import annotations

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from tiny_models import build
from tiny_models.tokenizer import SPECIAL, VOCAB_SIZE


def config() -> Qwen3MoeConfig:
    return Qwen3MoeConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=False,
        use_cache=False,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<bos>"),
        eos_token_id=SPECIAL.index("<eos>"),
    )


def qwen3_moe(seed: int = 0) -> Qwen3MoeForCausalLM:
    """About 32k parameters, more than half of them in the experts, between which rounding doesn't choose."""
    model = build(lambda: Qwen3MoeForCausalLM(config()), seed)
    for layer in model.model.layers:
        layer.mlp.gate.weight.data.mul_(8)
    return model
