"""The documented switches and numbers of engines and trainers that no program has, and why."""

from collections.abc import Mapping

COMPUTED = "it changes what is computed, and an axis or a feature of programs has it where it is of interest"
STRATEGY = "a strategy is what it is about"
FIXED = "with another value ranks can't be compared, show no evidence, or don't end"
LOGS = "it changes what is printed or measured"
SAVED = "it changes what is saved, and not what is trained"
HARDWARE = "it does something on other hardware than a few ranks of one machine, or on GPUs alone"
OLD = "a name that a newer one has replaced"
LISTS = "it is a list of the model's parameters"

_BY_REASON: Mapping[str, Mapping[str, str]] = {
    "ddp": {
        COMPUTED: "broadcast_buffers forward_sync_buffers mixed_precision",
        STRATEGY: "find_unused_parameters static_graph device_mesh process_group",
        HARDWARE: "device_ids output_device dim",
        LOGS: "check_reduction",
        LISTS: "delay_all_reduce_named_params param_to_hook_all_reduce bucket_cap_mb_list",
    },
    "fsdp1": {
        COMPUTED: "mixed_precision ignored_modules ignored_states param_init_fn",
        STRATEGY: "sharding_strategy auto_wrap_policy process_group device_mesh",
        FIXED: "use_orig_params",
        HARDWARE: "cpu_offload sync_module_states device_id",
    },
    "fsdp2": {COMPUTED: "ignored_params", STRATEGY: "mesh dp_mesh_dims"},
    "zero": {
        COMPUTED: "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients zenflow"
        " leaf_module",
        STRATEGY: "stage offload_param offload_optimizer zero_hpz_partition_size reduce_bucket_size",
        LOGS: "log_trace_cache_warnings",
        SAVED: "elastic_checkpoint stage3_gather_16bit_weights_on_model_save save_muon_momentum_buffer_in_memory",
        HARDWARE: "pipeline_loading_checkpoint cpu_offload_use_pin_memory stage3_model_persistence_threshold",
        OLD: "cpu_offload cpu_offload_param legacy_stage1 stage3_gather_fp16_weights_on_model_save",
    },
    "accelerate": {
        COMPUTED: "num_steps adjust_scheduler sync_with_dataloader step_scheduler_with_optimizer"
        " gradient_accumulation_steps",
        STRATEGY: "cpu",
        HARDWARE: "device_placement",
    },
    "trainer": {
        COMPUTED: "per_device_train_batch_size num_train_epochs max_steps learning_rate adam_beta1"
        " adam_beta2 adam_epsilon gradient_accumulation_steps max_grad_norm bf16 fp16 tf32 activation_checkpointing"
        " gradient_checkpointing use_cache neftune_noise_alpha seed data_seed remove_unused_columns"
        " label_smoothing_factor",
        STRATEGY: "ddp_find_unused_parameters ddp_static_graph use_cpu local_rank",
        FIXED: "torch_compile use_liger_kernel dataloader_persistent_workers",
        LOGS: "logging_steps log_on_each_node disable_tqdm eval_steps eval_delay per_device_eval_batch_size"
        " prediction_loss_only eval_do_concat_batches batch_eval_metrics bf16_full_eval fp16_full_eval",
        SAVED: "save_only_model save_steps save_on_each_node save_total_limit enable_jit_checkpoint push_to_hub"
        " hub_private_repo hub_always_push load_best_model_at_end greater_is_better ignore_data_skip",
        HARDWARE: "dataloader_pin_memory ddp_timeout",
        OLD: "do_train do_eval do_predict",
    },
}
LEFT_OUT: Mapping[str, str] = {
    f"{family}.{name}": reason
    for family, by_reason in _BY_REASON.items()
    for reason, names in by_reason.items()
    for name in names.split()
}
"""Why each is left out, by its key, such as ``fsdp1.use_orig_params``."""
