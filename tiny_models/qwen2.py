"""Qwen2ForCausalLM, alone or with a LoRA adapter on a frozen base."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from tiny_models import as_sharded, build, seeded
from tiny_models.tokenizer import SPECIAL, VOCAB_SIZE


def config(vocab_size: int = VOCAB_SIZE, **changes: Any) -> Qwen2Config:
    sizes = {"vocab_size": vocab_size, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.1}
    rest = {
        "pad_token_id": SPECIAL.index("<pad>"),
        "bos_token_id": SPECIAL.index("<bos>"),
        "eos_token_id": SPECIAL.index("<eos>"),
        "use_cache": False,
    }
    return Qwen2Config(**{**sizes, **layers, **rest, **changes})


def qwen2(seed: int = 0, **changes: Any) -> Qwen2ForCausalLM:
    """About 14k parameters."""
    settings = config(**changes)
    return build(lambda: Qwen2ForCausalLM(settings), seed)


def lora_config(**changes: Any) -> Any:
    """The report's adapter (r=16, alpha=32, dropout 0.05) at a quarter of its rank, its scale of 2 kept."""
    from peft import LoraConfig

    sizes = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.05}
    return LoraConfig(**{**sizes, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **changes})


def add_lora(model: Any, seed: int = 1, autocast_adapter_dtype: bool = True, **changes: Any) -> Any:
    """A PeftModel on the frozen base; B starts small, not at zero, so that A has a gradient at once."""
    # `changes` are those of the adapter's config, and `autocast_adapter_dtype` is PEFT's. No exported file has them.
    from peft import get_peft_model

    with seeded(seed):
        adapted = get_peft_model(model, lora_config(**changes), autocast_adapter_dtype=autocast_adapter_dtype)
    with seeded(seed):  # anew: of a model that is sharded, other numbers were drawn
        for name, parameter in adapted.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                std = 0.2 if "lora_A" in name else 0.05
                parameter.data.copy_(as_sharded(parameter, torch.randn(parameter.shape) * std))
    return adapted.train()
