"""What a training takes where its files leave it to the libraries, by their releases."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packaging.version import Version

from faultline.observations.ranges import Range

UNNAMED = "unnamed mode"
"""An axis of settings alone: transformers' arguments ask for checkpointing, and leave the mode to the libraries."""

# PreTrainedModel's default, where use_reentrant isn't given: True up to 4.57.6, False from 5.0.0 on.
NON_REENTRANT = Version("5.0.0")
# These TRL trainers set use_reentrant=False for an older transformers: not in 0.26.2 yet, in 0.27.1.
TRL_BEFORE, TRL_SINCE = Version("0.27.0.dev0"), Version("0.27.1")
TRL = frozenset(["sft", "dpo", "grpo", "rloo"])
OTHER_TRAINER = "another"
"""A trainer that the catalogue doesn't run."""

NORM = "max_grad_norm"
"""Another axis of settings alone: the norm at which gradients are meant to be clipped."""

# DeepSpeed's gradient_clipping where its config has none: 0.0 up to 0.19.2, 1.0 from 0.19.3 on.
CLIPS = Version("0.19.3")


def mode(left: Mapping[str, frozenset[str]], versions: Mapping[str, Range]) -> tuple[str, str]:
    """The mode that nobody named, and the package that decides it; both empty where the versions leave either."""
    transformers, trl = versions.get("transformers", Range()), versions.get("trl", Range())
    trainer = left.get("trainer", frozenset())
    if transformers.reaches(NON_REENTRANT):
        default = "non-reentrant", "transformers"
    elif not transformers.below(NON_REENTRANT):
        return "", ""
    elif trainer == frozenset([OTHER_TRAINER]) or trl.below(TRL_BEFORE):
        return "reentrant", "transformers"
    elif trainer and trainer <= TRL and trl.reaches(TRL_SINCE):
        default = "non-reentrant", "trl"
    else:
        return "", ""
    # There newer TRL trainers force it to be reentrant.
    zero3 = any(name.startswith("zero3") for name in left.get("strategy", ["zero3"]))
    forced = zero3 and trainer != frozenset([OTHER_TRAINER]) and left.get("adapter") != frozenset(["no"])
    return ("", "") if forced else default


def unlike(norms: Collection[str], deepspeed: Range) -> frozenset[str]:
    """Whether DeepSpeed clips otherwise than at the norm that is meant, where its config doesn't say at which."""
    clips = {"1.0"} if deepspeed.reaches(CLIPS) else {"0.0"} if deepspeed.below(CLIPS) else {"0.0", "1.0"}
    return frozenset({"yes" for norm in norms if {norm} != clips} | {"no" for norm in norms if norm in clips})
