"""Settings of engines that change how they compute, and must not change what."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Setting:
    """A documented setting of an engine: its `values`, the engine's default first, and where a config has it.

    `family` is that of the strategies that take it, and only those that `strategies` match, or TRAINER. `path` are the
    sections of DeepSpeed's JSON in front of the name, or the dictionary among TrainingArguments that has it; torch's
    engines take it as an argument.
    """

    family: str
    name: str
    values: tuple[Any, ...]
    path: tuple[str, ...] = ()
    strategies: str = "*"

    @property
    def key(self) -> str:
        return f"{self.family}.{self.name}"


TRAINER = "trainer"


def _trainer(name: str, *values: Any, path: tuple[str, ...] = ()) -> Setting:
    return Setting(TRAINER, name, values, path)


def _zero(name: str, *values: Any, strategies: str = "*") -> Setting:
    return Setting("zero", name, values, ("zero_optimization",), strategies)


# DDP: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
# FSDP1: https://docs.pytorch.org/docs/stable/fsdp.html
# fully_shard: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
# DeepSpeed: https://www.deepspeed.ai/docs/config-json/
# TrainingArguments: https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
_EVERY = (
    Setting("ddp", "bucket_cap_mb", (None, 0.0001, 0.001)),
    Setting("ddp", "gradient_as_bucket_view", (False, True)),
    Setting("ddp", "init_sync", (True, False)),
    Setting("ddp", "skip_all_reduce_unused_params", (False, True), strategies="ddp-find-unused"),
    Setting("ddp", "batched_grad_copy", (False, True)),
    Setting("fsdp1", "limit_all_gathers", (True, False)),
    Setting("fsdp1", "forward_prefetch", (False, True)),
    Setting("fsdp1", "backward_prefetch", ("BACKWARD_PRE", "BACKWARD_POST", None)),
    Setting("fsdp2", "reshard_after_forward", (None, True, False)),
    _zero("overlap_comm", None, False, True),
    _zero("contiguous_gradients", True, False),
    _zero("reduce_scatter", True, False, strategies="zero[12]*"),
    _zero("use_multi_rank_bucket_allreduce", True, False, strategies="zero[12]*"),
    _zero("allgather_partitions", True, False, strategies="zero[12]*"),
    _zero("allgather_bucket_size", None, 16, 200, strategies="zero[12]*"),
    _zero("round_robin_gradients", False, True, strategies="zero[12]*"),
    _zero("compute_grad_norm", True, False, strategies="zero[12]*"),
    _zero("ignore_unused_parameters", True, False, strategies="zero[12]*"),
    _zero("parameter_alignment", False, True),
    _zero("sub_group_size", None, 16, 200, strategies="zero3*"),
    _zero("stage3_prefetch_bucket_size", None, 0, 50, strategies="zero3*"),
    _zero("stage3_param_persistence_threshold", None, 10, 100, strategies="zero3*"),
    _zero("stage3_max_live_parameters", None, 0, 100, strategies="zero3*"),
    _zero("stage3_max_reuse_distance", None, 0, 100, strategies="zero3*"),
    _zero("stage3_module_granularity_threshold", None, 1, 100, strategies="zero3*"),
    _zero("stage3_use_all_reduce_for_fetch_params", False, True, strategies="zero3*"),
    _zero("stage3_allgather_sequential", False, True, strategies="zero3*"),
    _zero("memory_efficient_linear", True, False, strategies="zero3*"),
    _zero("override_module_apply", True, False, strategies="zero3*"),
    Setting("zero", "prescale_gradients", (False, True)),
    Setting("zero", "gradient_predivide_factor", (1.0, 2.0)),
    Setting("zero", "communication_data_type", (None, "fp32")),
    Setting("zero", "grad_accum_dtype", (None, "fp32"), ("data_types",)),
    _trainer("average_tokens_across_devices", True, False),
    _trainer("auto_find_batch_size", False, True),
    _trainer("eval_on_start", False, True),
    _trainer("full_determinism", False, True),
    _trainer("skip_memory_metrics", True, False),
    _trainer("include_num_input_tokens_seen", "no", "all"),
    _trainer("logging_nan_inf_filter", True, False),
    _trainer("restore_callback_states_from_checkpoint", False, True),
    _trainer("dispatch_batches", None, True, path=("accelerator_config",)),
    _trainer("even_batches", True, False, path=("accelerator_config",)),
    _trainer("use_seedable_sampler", True, False, path=("accelerator_config",)),
    _trainer("sync_each_batch", None, True, path=("accelerator_config", "gradient_accumulation_kwargs")),
)

SETTINGS: Mapping[str, Setting] = {each.key: each for each in _EVERY}
"""Every setting by its key, such as ``zero.overlap_comm``."""
