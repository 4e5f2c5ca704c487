"""The model types for which a release of transformers has a plan of parallelism; run by its interpreter."""

import json
import sys
from collections.abc import Iterator
from typing import Any

KINDS = ("tp", "ep")


def planned() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each type that has a plan of its own or of a part, the class that is trained, and which plans it has."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto as auto

    tasks = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM")
    classes = [getattr(auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in tasks]
    types = {}
    for name in CONFIG_MAPPING:
        trained = next((mapping[name] for mapping in classes if name in mapping), None)
        kinds = tuple(kind for kind in KINDS if any(_plan(part, kind) for part in _parts(name)))
        if trained and kinds:
            types[name] = (trained if isinstance(trained, str) else trained[0], kinds)
    return types


def _parts(name: str) -> Iterator[Any]:
    from transformers import CONFIG_MAPPING

    config = CONFIG_MAPPING[name]
    yield config
    yield from (part for part in (getattr(config, "sub_configs", None) or {}).values() if isinstance(part, type))


def _plan(config: Any, kind: str) -> Any:
    return getattr(config, f"base_model_{kind}_plan", None)


if __name__ == "__main__":
    json.dump(planned(), sys.stdout)
