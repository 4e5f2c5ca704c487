"""transformers takes a rank's shard of a fused weight in the file, and splits that shard into the model's weights."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

FOUND = "https://github.com/huggingface/transformers/pull/48519"
SHARDED = ("tp", "native-fsdp")

FAILURE = Failure(
    title="Weights that are converted at load are wrong where each rank loads its shard",
    first_seen="Kimi-K2.5, whose vision tower is permuted for RoPE as it is loaded",
    since="transformers' loading in shards, which converts what is already a shard",
    until="not fixed (transformers 5.24.0); open pull requests mend some conversions, not `Chunk`",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in what is loaded
    errors={"conversion-of-a-shard": r"issues during automatic conversion of the weights"},
    variants=(
        Variant("broken", strategies=("single", "ddp", "zero2", "zero3", "fsdp2", *SHARDED)),
        *variants("unfused converted_whole", strategies=("single", *SHARDED)),
        Variant(
            "unequal",
            strategies=("single", *SHARDED, "ep-fsdp"),
            text="a mixture of experts (Sarvam), whose fused query, key and value have other sizes",
        ),
        Variant(
            "unequal_unfused",
            strategies=("single", "native-fsdp", "ep-fsdp"),
            text="the same, saved with `save_original_format=False`",
        ),
    ),
    claims={
        FOUND: helps("convert the whole tensor, and take the rank's shard afterwards", remedy="converted_whole"),
        TRIED_HERE: (
            helps("load it in one process, and save it with `save_original_format=False`", remedy="unfused"),
            helps("load it whole, and shard it by accelerate's FSDP2", "broken/native-fsdp", strategy="fsdp2"),
        ),
    },
)


def hrm(fused=True):
    """HRM-Text, whose file has gate, query, key and value as one weight, and the two of the MLP as another."""
    from functools import partial

    from transformers import HrmTextConfig, HrmTextForCausalLM

    from tiny_models import build
    from tiny_models.tokenizer import VOCAB_SIZE

    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    layers = {"num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8, "initializer_range": 0.1}

    def make():
        model = HrmTextForCausalLM(HrmTextConfig(**sizes, **layers, use_cache=False))
        if not fused:
            model.save_pretrained = partial(model.save_pretrained, save_original_format=False)
        return model

    return build(make, 0)


def convert_whole():
    """Let the loader read whole tensors, and take a rank's shard of what they are converted to."""
    from torch.distributed.tensor import DTensor
    from transformers import core_model_loading as loading

    operation, put = loading.DtensorShardOperation, loading.set_param_for_module

    class Whole:
        def __init__(self, parameter):
            pass

        def shard_tensor(self, source, tensor_idx=None, device=None, dtype=None):
            return source[...].to(device=device, dtype=dtype)

    def put_shard(model, name, value, *others):
        parameter = model.get_parameter_or_buffer(name)
        if isinstance(parameter, DTensor):
            value = operation(parameter).shard_tensor(value)
        return put(model, name, value, *others)

    loading.DtensorShardOperation, loading.set_param_for_module = Whole, put_shard


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, text_batch
    from tiny_models.sarvam_moe import sarvam_moe

    if remedy == "converted_whole" and setup.strategy in SHARDED:
        convert_whole()
    build = sarvam_moe if remedy.startswith("unequal") else hrm
    return Scenario(build(fused=not remedy.endswith("unfused")), causal_lm_loss, text_batch)
