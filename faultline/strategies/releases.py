"""Where releases of the libraries under test differ: features are looked for, no versions compared."""

import inspect
from typing import Any

from faultline.base.errors import Impossible


def fsdp_plugin(version: int, **options: object) -> Any:
    """Accelerate's FSDP plugin; raises Impossible for FSDP2 before accelerate 1.6, whose plugin has no version yet."""
    from accelerate import FullyShardedDataParallelPlugin

    if "fsdp_version" in inspect.signature(FullyShardedDataParallelPlugin).parameters:
        return FullyShardedDataParallelPlugin(fsdp_version=version, **options)
    if version == 2:
        raise Impossible("this stack's accelerate has no FSDP2, which came with 1.6")
    return FullyShardedDataParallelPlugin(**options)
