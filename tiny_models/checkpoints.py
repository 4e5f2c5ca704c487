"""What libraries have saved, read in one process with their own tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

GATHER = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}}
"""What a DeepSpeed config needs for `save_model` to write whole weights under ZeRO-3."""


def state_dict(folder: Path) -> dict[str, Any]:
    """The whole parameters in a folder that `save_model` or `save_state` wrote, by name; empty where there are none."""
    if list(folder.glob("**/zero_pp_rank_*")) or list(folder.glob("**/bf16_zero_pp_rank_*")):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        tag = next(file.parent for file in folder.glob("**/*zero_pp_rank_*"))
        return get_fp32_state_dict_from_zero_checkpoint(str(tag.parent), tag.name)
    for shards in [*folder.glob("*model*/*.distcp"), *folder.glob("*.distcp")]:
        from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

        whole = folder / "whole.pt"
        dcp_to_torch_save(shards.parent, whole)
        content = torch.load(whole, weights_only=False)
        return content.get("model", content)
    for file in folder.glob("**/mp_rank_00_model_states.pt"):
        return torch.load(file, weights_only=False)["module"]
    for file in sorted(folder.glob("*.safetensors")):
        from safetensors.torch import load_file

        return load_file(file)
    for file in sorted(folder.glob("pytorch_model*.bin")):
        return torch.load(file)
    return {}
