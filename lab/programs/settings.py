"""Settings of engines and trainers: most change how these compute, and must not change what."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultline import trainers


@dataclass(frozen=True)
class Setting:
    """A documented setting of an engine: its `values`, the engine's default first, and where a config has it.

    `family` is that of the strategies that take it, and only those that `strategies` match; or accelerate; or one of
    TRAINERS: that of transformers is for all of them. `path` are the sections of DeepSpeed's JSON in front of the name,
    or the dictionary among TrainingArguments that has it; torch's engines take it as an argument. One that is not
    `neutral` changes what is computed, in one process as well. What has no place here has a reason in left_out.toml.
    """

    family: str
    name: str
    values: tuple[Any, ...]
    path: tuple[str, ...] = ()
    strategies: str = "*"
    neutral: bool = True

    @property
    def key(self) -> str:
        return f"{self.family}.{self.name}"


ACCELERATE, TRAINER = "accelerate", "trainer"
TRL = tuple(name for name, each in trainers.TRL.items() if each.columns)
TRAINERS = (TRAINER, *TRL)
SAMPLING = tuple(name for name in TRL if trainers.TRL[name].samples)
"""Those that draw what they train on: an evaluation draws too, and so changes what comes next."""


def _trainer(
    name: str, *values: Any, path: tuple[str, ...] = (), strategies: str = "*", neutral: bool = True
) -> Setting:
    return Setting(TRAINER, name, values, path, strategies, neutral)


def _trl(trainer: str, name: str, *values: Any, neutral: bool = False) -> Setting:
    return Setting(trainer, name, values, neutral=neutral)


def _zero(name: str, *values: Any, strategies: str = "*") -> Setting:
    return Setting("zero", name, values, ("zero_optimization",), strategies)


# Not sppo_hard: at a learning rate that shows the others' mistakes, it explodes within three steps.
DPO_LOSSES = "hinge ipo nca_pair robust bco_pair apo_zero apo_down discopop sft".split()
"""Of those that are sums over rows: `aot` sorts the rows that a rank has."""

# DDP: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
# Accelerate: https://huggingface.co/docs/accelerate/package_reference/utilities
# FSDP1: https://docs.pytorch.org/docs/stable/fsdp.html
# fully_shard: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
# DeepSpeed: https://www.deepspeed.ai/docs/config-json/
# TrainingArguments: https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments
# Configs of TRL: https://huggingface.co/docs/trl, by trainer
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
    Setting("fsdp2", "offload_policy", (None, "cpu")),
    Setting("fsdp2", "shard_placement_fn", (None, "last dimension if even")),
    _zero("overlap_comm", None, False, True),
    _zero("contiguous_gradients", True, False),
    _zero("reduce_scatter", True, False, strategies="zero[12]*"),
    _zero("use_multi_rank_bucket_allreduce", True, False, strategies="zero[12]*"),
    _zero("allgather_partitions", True, False, strategies="zero[12]*"),
    _zero("allgather_bucket_size", None, 16, 200, strategies="zero[12]*"),
    _zero("load_from_fp32_weights", True, False, strategies="zero[12]*"),
    _zero("enable_sanity_checks", False, True),
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
    Setting(ACCELERATE, "sync_each_batch", (False, True)),
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
    _trainer("split_batches", False, True, path=("accelerator_config",)),
    _trainer("use_seedable_sampler", True, False, path=("accelerator_config",)),
    _trainer("sync_each_batch", None, True, path=("accelerator_config", "gradient_accumulation_kwargs")),
    _trainer("ddp_broadcast_buffers", None, False, strategies="ddp*"),
    _trainer("dataloader_drop_last", False, True),
    _trainer("ddp_bucket_cap_mb", None, 1, strategies="ddp*"),
    _trainer("eval_accumulation_steps", None, 1),
    _trainer("eval_use_gather_object", False, True),
    _trainer("dataloader_num_workers", 0, 1),
    _trainer("dataloader_prefetch_factor", None, 1),
    _trainer("dataloader_in_order", True, False),
    _trainer("logging_first_step", False, True),
    _trainer("forward_prefetch", False, True, path=("fsdp_config",), strategies="fsdp1*"),
    _trainer("limit_all_gathers", False, True, path=("fsdp_config",), strategies="fsdp1*"),
    _trainer("backward_prefetch", None, "backward_pre", "backward_post", path=("fsdp_config",), strategies="fsdp1*"),
    _trainer("torch_empty_cache_steps", None, 1),
    _trainer("weight_decay", 0.0, 0.1, neutral=False),
    _trainer("warmup_steps", 0, 2, neutral=False),
    _trainer("lr_scheduler_type", "constant", "cosine", neutral=False),
    _trl("sft", "loss_type", "nll", "dft", "chunked_nll"),
    _trl("sft", "label_smoothing_factor", 0.0, 0.1),
    _trl("sft", "completion_only_loss", None, False),
    _trl("sft", "max_length", 1024, 20),
    _trl("sft", "pad_to_multiple_of", None, 8, neutral=True),
    _trl("dpo", "loss_type", "sigmoid", *DPO_LOSSES),
    _trl("dpo", "label_smoothing", 0.0, 0.1),
    _trl("dpo", "ld_alpha", None, 0.5),
    _trl("dpo", "f_divergence_type", "reverse_kl", "js_divergence", "alpha_divergence"),
    _trl("dpo", "use_weighting", False, True),
    _trl("dpo", "precompute_ref_log_probs", False, True, neutral=True),
    _trl("dpo", "sync_ref_model", False, True),
    _trl("dpo", "max_length", 1024, 20),
    _trl("dpo", "pad_to_multiple_of", None, 8, neutral=True),
    _trl("grpo", "loss_type", "dapo", "grpo", "bnpo", "dr_grpo", "cispo", "sapo", "luspo", "vespo"),
    _trl("grpo", "beta", 0.0, 0.1),
    _trl("grpo", "scale_rewards", "group", "batch", "none"),
    _trl("grpo", "num_iterations", 1, 2, 3),
    _trl("grpo", "use_adaptive_entropy", False, True),
    _trl("grpo", "importance_sampling_level", "token", "sequence"),
    _trl("grpo", "epsilon_high", None, 0.3),
    _trl("grpo", "delta", None, 4.0),
    _trl("grpo", "top_entropy_quantile", 1.0, 0.5),
    _trl("grpo", "entropy_coef", 0.0, 0.01),
    _trl("grpo", "sync_ref_model", False, True),
    _trl("grpo", "off_policy_mask_threshold", None, 0.5),
    _trl("grpo", "repetition_penalty", 1.0, 1.2),
    _trl("grpo", "temperature", 1.0, 0.7),
    _trl("grpo", "cast_lm_head_to_fp32", False, True),
    _trl("grpo", "ds3_gather_for_generation", True, False, neutral=True),
    _trl("grpo", "cache_implementation", None, "static", neutral=True),
    _trl("grpo", "use_bias_correction_kl", True, False),
    _trl("grpo", "shuffle_dataset", True, False),
    _trl("kto", "desirable_weight", 1.0, 1.5),
    _trl("kto", "undesirable_weight", 1.0, 0.5),
    _trl("kto", "sync_ref_model", False, True),
    _trl("kto", "max_length", 1024, 20),
    _trl("kto", "pad_to_multiple_of", None, 8, neutral=True),
    _trl("rloo", "beta", 0.05, 0.0),
    _trl("rloo", "num_iterations", 1, 2, 3),
    _trl("rloo", "normalize_advantages", False, True),
    _trl("rloo", "epsilon_high", None, 0.3),
    _trl("rloo", "sync_ref_model", False, True),
    _trl("rloo", "temperature", 1.0, 0.7),
    _trl("rloo", "shuffle_dataset", True, False),
    _trl("reward", "center_rewards_coefficient", None, 0.01),
    _trl("reward", "max_length", 1024, 20),
    _trl("reward", "pad_to_multiple_of", None, 8, neutral=True),
    _trl("cpo", "loss_type", "sigmoid", "hinge", "ipo", "simpo"),
    _trl("cpo", "cpo_alpha", 1.0, 0.0),
    _trl("cpo", "label_smoothing", 0.0, 0.1),
    _trl("cpo", "max_length", 1024, 20),
    _trl("orpo", "beta", 0.1, 1.0),
    _trl("orpo", "max_length", 1024, 20),
    _trl("tpo", "loss_type", "sigmoid", "hinge", "ipo", "tpo-l"),
    _trl("tpo", "tpo_alpha", 1.0, 0.0),
    _trl("tpo", "label_smoothing", 0.0, 0.1),
    _trl("tpo", "max_length", 1024, 20),
    _trl("tpo", "pad_to_multiple_of", None, 8, neutral=True),
    _trl("gmpo", "beta", 0.0, 0.1),
    _trl("gmpo", "num_iterations", 1, 2),
    _trl("gmpo", "sync_ref_model", False, True),
    _trl("distillation", "beta", 1.0, 0.0, 0.5),
    _trl("distillation", "temperature", 1.0, 0.7),
    _trl("distillation", "repetition_penalty", 1.0, 1.2),
    _trl("distillation", "ds3_gather_for_generation", True, False, neutral=True),
    _trl("distillation", "cache_implementation", None, "static", neutral=True),
    _trl("distillation", "shuffle_dataset", True, False),
)

SETTINGS: Mapping[str, Setting] = {each.key: each for each in _EVERY}
"""Every setting by its key, such as ``zero.overlap_comm``."""
