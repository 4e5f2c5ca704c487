"""LoRA on a model that transformers sharded as it loaded it: some adapters get the size of a shard, and raise."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

PEFT = "https://github.com/huggingface/peft/issues/3628"
SHARDED = ("tp", "native-hsdp", "fsdp-tp")

FAILURE = Failure(
    title="LoRA gets the size of a shard on a model that was sharded as it was loaded",
    first_seen="PEFT with transformers 5.16",
    since="transformers 5.16, which removed what PEFT's support of tensor parallelism calls",
    until="not fixed in peft 0.21.2",
    upstream="huggingface/peft",
    checkpointing=("off",),  # checkpointing has no part in the shapes of an adapter
    errors={
        "row-parallel-adapter": r"shape '\[[\d, ]+\]' is invalid for input of size \d+",
        "halved-adapter": r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\) at non-singleton dim",
        "expert-adapter": r"'ParamWrapper' object has no attribute 'weight'",
    },
    variants=(
        *variants("broken column_only", strategies=("single", "ddp", "fsdp2", *SHARDED)),
        Variant(
            "experts_broken",
            strategies=("single", "tp", "tp-ep", "fsdp-tp"),
            text="LoRA on the weights of experts (`target_parameters`)",
        ),
    ),
    claims={
        "https://github.com/huggingface/peft/pull/3079": helps(
            "LoRA on column-parallel layers alone: q, k, v, gate, up", "broken", remedy="column_only"
        ),
        TRIED_HERE: helps("FSDP2 by hand or by accelerate", "broken/tp", strategy="fsdp2"),
    },
)
ROWS = ["o_proj", "down_proj"]
COLUMNS = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, add_lora, causal_lm_loss, qwen2, text_batch
    from tiny_models.qwen3_moe import qwen3_moe

    if remedy == "experts_broken":
        experts = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
        model = add_lora(qwen3_moe(), target_modules=[], target_parameters=experts, lora_dropout=0.0)
    else:
        model = add_lora(qwen2(), target_modules=COLUMNS if remedy == "column_only" else ROWS)
    return Scenario(model, causal_lm_loss, text_batch)
