"""Where releases of the libraries under test differ, in one place: features are looked for, no versions compared."""

from __future__ import annotations

import inspect
import os
from typing import Any

from faultline.base.errors import Impossible


def fsdp_plugin(version: int, **options: Any) -> Any:
    """Accelerate's FSDP plugin; raises Impossible for FSDP2 before accelerate 1.6, whose plugin has no version yet."""
    from accelerate import FullyShardedDataParallelPlugin

    if "fsdp_version" in inspect.signature(FullyShardedDataParallelPlugin).parameters:
        return FullyShardedDataParallelPlugin(fsdp_version=version, **options)
    if version == 2:
        raise Impossible("this stack's accelerate has no FSDP2, which came with 1.6")
    return FullyShardedDataParallelPlugin(**options)


def fsdp2_arguments(options: dict[str, Any]) -> dict[str, Any]:
    """FSDP2 for TrainingArguments.

    Transformers 4 does not hand `version` on: there, FSDP2 is chosen by the
    variables that accelerate's launcher sets, which transformers 5 overrules.
    """
    fsdp_plugin(2, cpu_ram_efficient_loading=False)
    os.environ["FSDP_VERSION"] = "2"
    os.environ["FSDP_RESHARD_AFTER_FORWARD"] = str(options["reshard_after_forward"]).lower()
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": {"version": 2, "sync_module_states": False, **options}}
