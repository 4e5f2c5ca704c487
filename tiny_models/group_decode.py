"""A Qwen2 body with the speech adapter whose output is split and regrouped, as in SLAM-Omni."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import Qwen2ForCausalLM

from tiny_models import build
from tiny_models.qwen2 import config
from tiny_models.tokenizer import VOCAB_SIZE


class LinearGroupDecodeAdapter(nn.Module):
    """One linear layer for all code layers: [B, T, V] to [B, T, L, V] audio logits.

    Source: the adapter of modelscope/ms-swift issue 3262, where L x V is 12480.
    """

    def __init__(self, audio_vocab_size: int, code_layer: int) -> None:
        super().__init__()
        self.audio_vocab_size = audio_vocab_size
        self.linear = nn.Linear(audio_vocab_size, code_layer * audio_vocab_size)

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.linear(logits).split(self.audio_vocab_size, dim=-1), dim=-2)


class SpeechModel(nn.Module):
    """A vocabulary of text and audio tokens; the adapter makes each layer's logits of the audio part.

    `also(model, logits)` runs within the forward pass, on the logits of all tokens.
    """

    def __init__(self, audio_vocab_size: int, code_layer: int) -> None:
        super().__init__()
        self.also: Callable[[SpeechModel, torch.Tensor], torch.Tensor] | None = None
        settings = config(VOCAB_SIZE + audio_vocab_size)
        self.body = Qwen2ForCausalLM(settings)
        self.adapter = LinearGroupDecodeAdapter(audio_vocab_size, code_layer)
        self._no_split_modules = ["Qwen2DecoderLayer", "LinearGroupDecodeAdapter"]

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        self.body.gradient_checkpointing_enable(gradient_checkpointing_kwargs=gradient_checkpointing_kwargs)

    def audio(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits [B, T, text + V] to audio logits [B, T, L, V]."""
        return self.adapter(logits[..., VOCAB_SIZE:])

    def forward(self, input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """input_ids [B, T] to logits [B, T, text + V], and what `also` makes of them."""
        logits = self.body(input_ids=input_ids).logits
        return logits, self.also(self, logits) if self.also else None


def speech_model(seed: int = 0, audio_vocab_size: int = 16, code_layer: int = 3) -> SpeechModel:
    """About 16k parameters; audio_vocab_size 4160 with code_layer 3 gives the report's 12480."""
    return build(lambda: SpeechModel(audio_vocab_size, code_layer), seed)
