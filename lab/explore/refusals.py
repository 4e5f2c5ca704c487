"""What engines are documented to refuse, by its text, and what is known of features of a training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.base import packages
from faultline.base.paths import ROOT
from faultline.base.text import matches
from lab.programs import rules
from lab.programs.program import Program
from lab.programs.settings import SETTINGS


@dataclass(frozen=True)
class Refusal:
    """Words by which engines refuse something, under which strategies, and where that is documented: in the source that
    raises them, or in a report of it upstream."""

    strategies: tuple[str, ...]
    words: str
    link: str


@dataclass(frozen=True)
class Rule:
    """Features of a program that are known to do something else than train: a `failure` of the catalogue shows it."""

    strategies: tuple[str, ...]
    where: Mapping[str, Any]
    failure: str

    def holds(self, program: Program, strategy: str) -> bool:
        """Whether a program has all of the features, under one of the strategies."""
        return matches(strategy, self.strategies) and rules.has(self.where, program.value)


def refusal(strategies: str, words: str, file: str) -> Refusal:
    """A refusal by a file of a package's source, at the release that is pinned."""
    package = file.partition("/")[0]
    return Refusal(tuple(strategies.split()), words, SOURCES[package].format(PINS[package]) + file)


def known(strategies: str, failure: str, **where: Any) -> Rule:
    return Rule(tuple(strategies.split()), where, failure)


PINS = packages.pinned(ROOT / "requirements.txt")
SOURCES = {
    "accelerate": "https://github.com/huggingface/accelerate/blob/v{}/src/",
    "deepspeed": "https://github.com/deepspeedai/DeepSpeed/blob/v{}/",
    "safetensors": "https://github.com/huggingface/safetensors/blob/v{}/bindings/python/py_src/",
    "transformers": "https://github.com/huggingface/transformers/blob/v{}/src/",
}
REFUSALS: Sequence[Refusal] = (
    refusal("zero2*", "pre-scale gradients is not yet supported", "deepspeed/runtime/zero/stage_1_and_2.py"),
    refusal("zero3*", "pre-scale gradients is not yet supported", "deepspeed/runtime/zero/stage3.py"),
    refusal("zero2*", "gradient_predivide_factor != 1.0 is not yet", "deepspeed/runtime/zero/stage_1_and_2.py"),
    refusal("zero3*", "gradient_predivide_factor != 1.0 is not yet", "deepspeed/runtime/zero/stage3.py"),
    refusal("zero*", "compute_grad_norm=false requires gradient_", "deepspeed/runtime/zero/stage_1_and_2.py"),
    refusal("zero3*", "compute_grad_norm=false is supported only with", "deepspeed/runtime/zero/config.py"),
    refusal("fsdp*", "do not support `clip_grad_value_`", "accelerate/accelerator.py"),
    refusal("*", "You can't use batches of different size with `dispatch_batches=True`", "accelerate/data_loader.py"),
    refusal("zero3*", "`auto_find_batch_size` isn't supported yet with DeepSpeed Zero-3", "transformers/trainer.py"),
    refusal("*", "You are trying to save a non contiguous tensor", "safetensors/torch.py"),
    refusal("*", "Some tensors share memory, this will lead to duplicate memory", "safetensors/torch.py"),
)

REPORTED: Sequence[Refusal] = (
    Refusal(
        ("ddp*", "fsdp*"),
        r"Missing optimizer state for parameter|Missing key in checkpoint state_dict: optimizer\.state",
        "https://github.com/pytorch/pytorch/pull/192307",
    ),
)
"""Errors that are no refusals: upstream has a report of each, and findings/ has one that shows it."""

SYNCED = [key for key, setting in SETTINGS.items() if setting.name == "sync_ref_model"]

TRAINING: Sequence[Rule] = (
    known("fsdp*", "fsdp2_method_or_child_outside_root_forward", tying="by hand", parts_are_units=True),
    known("fsdp1*", "fsdp_generate_while_training", between="generation"),
    known("*", "dpo_precompute_ref_in_memory_dataset", **{"dpo.precompute_ref_log_probs": True}),
    *(known("fsdp1-full fsdp1-grad-op", "fsdp1_synced_reference_is_stale", **{key: True}) for key in SYNCED),
    *(known("*", "synced_reference_starts_again", life=("resumed", "resized"), **{key: True}) for key in SYNCED),
    known("ddp*", "ddp_unfreeze_after_wrap", unfreeze=True),
    known("ddp* fsdp1*", "ddp_forward_bypasses_wrapper", around=True),
    known("zero3*", "zero3_accumulation_outside_forward", around=True, accumulate=(2, 3)),
    known("fsdp*", "ranks_build_different_weights", begins="by rank"),
    Rule(("ddp*",), {"begins": "by rank", "ddp.init_sync": False}, "ranks_build_different_weights"),
    known("zero*", "zero_weights_loaded_after_initialize", begins="loaded"),
    known("zero*", "zero_unfreeze_after_initialize", unfreeze=True),
    known("zero[12]*", "zero12_manual_ga_keeps_last_microbatch", accumulating="by hand"),
    Rule(("fsdp2*",), {"loss": "weight penalty", "fsdp2.reshard_after_forward": True}, "penalty_outside_forward"),
    known("fsdp*", "fsdp2_tied_embeddings_split_groups", tied="blocks", through="accelerate"),
    known("zero3*", "zero3_accumulation_outside_forward", method="model", accumulate=(2, 3)),
    known("zero* fsdp1*", "weight_decay_without_gradient", optimizer="adamw", spare=True),
    known("zero* fsdp1*", "weight_decay_without_gradient", optimizer="adamw", no_grad="part"),
    known("zero* fsdp1*", "weight_decay_without_gradient", optimizer=("sgd", "groups"), spare_runs="at first"),
    known("zero3*", "zero3_gradient_of_an_earlier_step", spare_runs="at first"),
    known("ddp-static-graph", "ddp_static_graph_no_sync", accumulate=(2, 3)),
)
"""By features beside those of a model, for which `programs.truth` has what is known."""

ONCE: Sequence[Rule] = (
    known("zero2*", "zero2_ga_wrong_gradient", accumulate=(2, 3)),
    known("zero0*", "zero0_bf16_loss_scale", precision="bf16"),
)
"""Of failures that today's releases don't have, so that nothing is set aside for them."""
