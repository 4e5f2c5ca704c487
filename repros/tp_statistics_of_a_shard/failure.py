"""A mean and a deviation over features that tensor parallelism shards: each rank takes those of its own part."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, trains, variants

FAILURE = Failure(
    title="Tensor-parallel ranks take a mean over the features of their own shard",
    first_seen="Gemma 3n, whose first ten layers keep what is far above the mean of all features",
    since="Gemma 3n's first tensor-parallel plan",
    until="not fixed (transformers 5.24.0)",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in what a rank sees of the features
    variants=(
        Variant("broken", strategies=("single", "ddp", "zero2", "zero3", "fsdp2", "native-fsdp", "tp")),
        *variants("gathered", strategies=("single", "tp")),
        Variant("no_sparsity", strategies=("single", "tp"), text="the same model without activation sparsity"),
    ),
    claims={
        TRIED_HERE: (
            helps(
                "gather `gate_proj` and `up_proj` in the plan, and let `down_proj` split its input", remedy="gathered"
            ),
            helps("FSDP instead of tensor parallelism", "broken/tp", strategy="native-fsdp"),
            trains("Gemma 3n with `activation_sparsity_pattern` 0 in every layer", "no_sparsity/tp"),
        ),
    },
)

GATHERED = {
    "layers.*.mlp.gate_proj": "colwise_gather_output",
    "layers.*.mlp.up_proj": "colwise_gather_output",
    "layers.*.mlp.down_proj": "rowwise_split_input",
}


def gemma3n(sparsity):
    """Gemma 3n's text model, of which the first of two layers is sparse."""
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    from tiny_models import build
    from tiny_models.tokenizer import SPECIAL, VOCAB_SIZE

    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 96, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "laurel_rank": 8}
    inputs = {"vocab_size_per_layer_input": VOCAB_SIZE, "hidden_size_per_layer_input": 16}
    layers = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "num_kv_shared_layers": 0}
    special = {f"{name}_token_id": SPECIAL.index(f"<{name}>") for name in ("pad", "bos", "eos")}
    config = Gemma3nTextConfig(
        **sizes, **heads, **inputs, **layers, **special, activation_sparsity_pattern=[sparsity, 0.0], use_cache=False
    )
    return build(lambda: Gemma3nForCausalLM(config), 0)


def scenario(remedy, setup):
    from transformers import Gemma3nTextConfig

    from tiny_models.kit import Scenario, causal_lm_loss, text_batch

    if remedy == "gathered":
        Gemma3nTextConfig.base_model_tp_plan = Gemma3nTextConfig.base_model_tp_plan | GATHERED
    return Scenario(gemma3n(0.0 if remedy == "no_sparsity" else 0.95), causal_lm_loss, text_batch)
