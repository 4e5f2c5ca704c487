"""A vision language model that calls its vision tower once per image or slice, as MiniCPM-V 2.6 does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Qwen2ForCausalLM, SiglipVisionConfig, SiglipVisionModel

from tiny_models import build
from tiny_models.qwen2 import config


class Resampler(nn.Module):
    """Learned queries [Q, H] that attend to one image's patches: [N, P, D] to [N, Q, H]."""

    def __init__(self, queries: int, patch_dim: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(queries, hidden) * 0.5)
        self.key_value = nn.Linear(patch_dim, hidden, bias=False)
        self.attention = nn.MultiheadAttention(hidden, 2, batch_first=True)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        patches = self.key_value(patches)
        query = self.query.expand(len(patches), -1, -1)
        return self.norm(self.attention(query, patches, patches, need_weights=False)[0])


class PerImageVisionModel(nn.Module):
    """The slices of each row become soft tokens in front of its text.

    `calls` is how often the tower runs for the slices of one batch: once per
    slice (2.6) when it equals their number, once for all (2.5) when it is 1.
    """

    def __init__(self) -> None:
        super().__init__()
        settings = config()
        self.llm = Qwen2ForCausalLM(settings)
        vision = SiglipVisionConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,  # of a single layer, the bug that trains wrongly in small buckets makes an error
            num_attention_heads=2,
            image_size=8,
            patch_size=4,
            vision_use_head=False,
        )
        self.vpm = SiglipVisionModel(vision)
        self.resampler = Resampler(2, vision.hidden_size, self.llm.config.hidden_size)
        self._no_split_modules = ["Qwen2DecoderLayer", "SiglipEncoderLayer", "Resampler"]

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict[str, Any] | None = None) -> None:
        for part in (self.llm, self.vpm):
            part.gradient_checkpointing_enable(gradient_checkpointing_kwargs=gradient_checkpointing_kwargs)

    def forward(self, input_ids: torch.Tensor, slices: torch.Tensor, calls: int) -> torch.Tensor:
        """input_ids [B, T] and slices [B, S, 3, 8, 8] to logits [B, T, vocabulary]."""
        rows, count = slices.shape[:2]
        chunks = slices.flatten(0, 1).tensor_split(calls)
        seen = torch.cat([self.resampler(self.vpm(pixel_values=chunk).last_hidden_state) for chunk in chunks])
        soft = seen.reshape(rows, count * seen.shape[1], seen.shape[2])
        text = self.llm.get_input_embeddings()(input_ids)
        logits = self.llm(inputs_embeds=torch.cat([soft, text], dim=1)).logits
        return logits[:, soft.shape[1] :]


def per_image_vision_model(seed: int = 0) -> PerImageVisionModel:
    """About 24k parameters."""
    return build(PerImageVisionModel, seed)
