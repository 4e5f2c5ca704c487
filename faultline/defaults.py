"""Which mode of checkpointing a training takes that doesn't name one, by its releases of transformers and TRL."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from faultline.ranges import Range

UNNAMED = "unnamed mode"
"""An axis of settings alone: transformers' arguments ask for checkpointing, and leave the mode to the libraries."""

# PreTrainedModel's default, where use_reentrant isn't given: True up to 4.57.6, False from 5.0.0 on.
NON_REENTRANT = Version("5.0.0")
# These TRL trainers set use_reentrant=False for an older transformers: not in 0.26.2 yet, in 0.27.1.
TRL_BEFORE, TRL_SINCE = Version("0.27.0.dev0"), Version("0.27.1")
TRL = frozenset(["sft", "dpo", "grpo", "rloo"])
OWN = "another"


def mode(left: Mapping[str, frozenset[str]], versions: Mapping[str, Range]) -> tuple[str, str]:
    """The mode that nobody named, and the package that decides it; both empty where the versions leave either."""
    transformers, trl = versions.get("transformers", Range()), versions.get("trl", Range())
    trainer = left.get("trainer", frozenset())
    if transformers.reaches(NON_REENTRANT):
        found = "non-reentrant", "transformers"
    elif not transformers.below(NON_REENTRANT):
        return "", ""
    elif trainer == frozenset([OWN]) or trl.below(TRL_BEFORE):
        return "reentrant", "transformers"
    elif trainer and trainer <= TRL and trl.reaches(TRL_SINCE):
        found = "non-reentrant", "trl"
    else:
        return "", ""
    # There newer TRL trainers force it to be reentrant.
    zero3 = any(name.startswith("zero3") for name in left.get("strategy", ["zero3"]))
    forced = zero3 and trainer != frozenset([OWN]) and left.get("adapter") != frozenset(["no"])
    return ("", "") if forced else found
