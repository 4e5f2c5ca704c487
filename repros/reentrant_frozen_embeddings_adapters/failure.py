"""Blocks checkpointed by hand behind frozen embeddings: the adapters in them get no gradient, and the head trains."""

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps, variants

TRANSFORMERS = "https://github.com/huggingface/transformers/pull/25846"

FAILURE = Failure(
    title="Behind frozen embeddings, reentrant checkpointing trains only the head",
    first_seen="LoRA adapters beside a head that is trained",
    since="torch's reentrant checkpointing",
    until="not fixed: it is documented; TRL's `SFTTrainer` sees to it since 0.20.0, transformers itself by 5.23",
    checkpointing=("reentrant",),
    errors={
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration"
        r"|parameters that were not used in producing (?:the )?loss|did not receive grad for rank \d"
        r"|forward` function outputs participate in calculating loss"
    },
    # ddp_peft_reentrant_ready_twice, what fsdp2_method_or_child_outside_root_forward does to a head, and
    # zero3_nonreentrant_frozen_checkpointerror
    also_raises=("halved-adapter", "row-parallel-adapter", "marked-ready-twice", "differs", "recomputed-empty"),
    variants=(
        Variant("broken", checkpointing=EVERY_MODE),
        *variants("broken model_non_reentrant", trainer="sft", strategies=("single", "ddp", "zero2", "fsdp2")),
    ),
    claims={
        "https://github.com/huggingface/transformers/issues/26221": (
            helps("`use_reentrant=False`", "broken", checkpointing="non-reentrant"),
            helps(
                "`use_reentrant=False` given to the model, and not to the trainer",
                "sft-broken",
                remedy="model_non_reentrant",
            ),
        ),
        "https://github.com/locuslab/open-unlearning/issues/178": helps(
            "`model.enable_input_require_grads()`", "broken", remedy="enable_input_require_grads"
        ),
        TRANSFORMERS: helps("transformers' own checkpointing, 5.23", "broken/*/reentrant", variant="sft-broken"),
        TRIED_HERE: (
            helps("`find_unused_parameters=True`, as DDP's error says", "*broken/ddp", strategy="ddp-find-unused"),
            helps("a newer TRL and transformers (0.24.0, 4.57.1)", "sft-broken", stack="trl-0.24.0"),
        ),
    },
)


def adapters_and_head(remedy):
    from tiny_models.kit import add_lora, qwen2

    base = qwen2()
    if remedy == "enable_input_require_grads":
        base.enable_input_require_grads()
    model = add_lora(base)
    model.get_base_model().lm_head.requires_grad_(True)
    return model


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, checkpoint_layers, text_batch

    return Scenario(adapters_and_head(remedy), causal_lm_loss, text_batch, checkpoint=checkpoint_layers)


def trainer(variant, arguments, setup):
    from tiny_models.kit import sft_trainer

    model = adapters_and_head(variant.remedy)
    if variant.remedy == "model_non_reentrant":  # and the trainer's own arguments say otherwise
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return sft_trainer(model, arguments)
