"""Blocks checkpointed by hand behind frozen embeddings: the adapters in them get no gradient, and the head trains."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

RESET = "https://github.com/huggingface/transformers/issues/26221"

BISECT = (
    "make bisect FAILURE=reentrant_frozen_embeddings_adapters PACKAGE=trl VARIANT=sft-broken STRATEGY=single"
    " CHECKPOINTING=reentrant PRECISION=fp32 FROM=0.17.0 TO=0.24.0 DIRECTION=fixed BLAME=1"
)
ADAPTER = ("adapter",)
SOME = ("single", "ddp", "zero2", "fsdp2")

FAILURE = Failure(
    title="Reentrant checkpointing behind frozen embeddings trains the head and no adapter",
    records=(
        RESET,
        "https://github.com/locuslab/open-unlearning/issues/178",
        "https://github.com/cloneofsimo/lora/issues/26",
        "https://github.com/microsoft/LoRA/issues/120",
        "https://github.com/huggingface/trl/issues/835",
        "https://github.com/huggingface/transformers/issues/42489",
        "https://github.com/huggingface/transformers/pull/42494",
        "https://github.com/NVIDIA-TAO/tao-pytorch/pull/106",
    ),
    since="torch's reentrant checkpointing",
    until="not fixed: it is documented; TRL's `SFTTrainer` sees to it since 0.20.0, transformers itself by 5.23",
    found_by=("frozen_input",),
    fixes=(Turn("trl", "0.20.0", {"variant": "sft-broken", "checkpointing": "reentrant"}, BISECT),),
    report="broken/fsdp2/*",
    reported=Reported("trl-0.17.0", "sft-broken", "ddp", "reentrant", good="trl-0.24.0"),
    signatures={
        "unfinished-reduction": r"Expected to have finished reduction in the prior iteration",
    },
    context={"unfinished-reduction": r"None of the inputs have requires_grad"},
    warns={
        r"None of the inputs have requires_grad=True": "weights inside of the checkpointed part should be trained, such"
        " as adapters; where all of it is frozen on purpose, or only evaluated, it is harmless",
    },
    told_by={"unfinished-reduction": "torch's warning that no input of a checkpointed part requires a gradient"},
    shares={"unfinished-reduction": "ddp_unused_vision_tower/unfinished-reduction"},
    # ddp_peft_reentrant_ready_twice, what fsdp2_method_or_child_outside_root_forward does to a head, and
    # zero3_nonreentrant_frozen_checkpointerror
    elsewhere=("marked-ready-twice", "differs", "recomputed-empty"),
    variants=(
        Variant(
            "broken", needs=ADAPTER, look="blocks of a frozen model checkpointed by hand, below a head that is trained"
        ),
        Variant("enable_input_require_grads", checkpointing=("reentrant",)),
        Variant("broken", trainer="sft", strategies=SOME, checkpointing=("reentrant",), needs=ADAPTER),
        Variant("model_non_reentrant", trainer="sft", strategies=SOME, checkpointing=("reentrant",)),
    ),
    claims={
        "a": Claim(
            "`use_reentrant=False`",
            swap={"checkpointing": "non-reentrant"},
            where={"variant": "broken"},
            general="`use_reentrant=False`",
        ),
        "b": Claim(
            "`model.enable_input_require_grads()`",
            swap={"remedy": "enable_input_require_grads"},
            where={"variant": "broken"},
            general="have the checkpointed part's input require a gradient, as `enable_input_require_grads()` does",
        ),
        "c": Claim(
            "`find_unused_parameters=True`, as DDP's error says",
            swap={"strategy": "ddp-find-unused"},
            where={"strategy": "ddp"},
            general="`find_unused_parameters=True`",
        ),
        "d": Claim(
            "transformers' own checkpointing, 5.23",
            swap={"variant": "sft-broken"},
            where={"variant": "broken", "checkpointing": "reentrant"},
        ),
        "e": Claim(
            "`use_reentrant=False` told to the model, and not to the trainer",
            swap={"remedy": "model_non_reentrant"},
            where={"variant": "sft-broken"},
            source=RESET,
        ),
        "f": Claim(
            "a newer TRL and transformers (0.24.0, 4.57.1)",
            swap={"stack": "trl-0.24.0"},
            where={"variant": "sft-broken"},
        ),
    },
)


def adapters_and_head(remedy):
    from tiny_models.qwen2 import add_lora, qwen2

    base = qwen2()
    if remedy == "enable_input_require_grads":
        base.enable_input_require_grads()
    model = add_lora(base)
    model.get_base_model().lm_head.requires_grad_(True)
    return model


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss, checkpoint_layers
    from tiny_models.data import text_batch

    return Scenario(adapters_and_head(remedy), causal_lm_loss, text_batch, checkpoint=checkpoint_layers)


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.tokenizer import tokenizer

    model, words = adapters_and_head(variant.remedy), tokenizer(padding_side="right")
    if variant.remedy == "model_non_reentrant":  # and the trainer's own arguments say otherwise
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return SFTTrainer(model, SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
