"""ZeRO-3 with non-reentrant checkpointing of blocks that hold frozen parameters: recomputed values have shape [0]."""

from faultline.catalogue import Claim, Failure, Reported, Turn, Variant

FIX = "https://github.com/deepspeedai/DeepSpeed/pull/8148"
ADAPTER = ("adapter",)
ZERO3 = {"variant": "broken", "strategy": "zero3*", "checkpointing": "non-reentrant"}
BISECT = (
    "make bisect FAILURE=zero3_nonreentrant_frozen_checkpointerror PACKAGE=deepspeed DIRECTION=fixed OTHERS=fixed"
    " FROM=0.18.3 VARIANT=broken STRATEGY=zero3 CHECKPOINTING=non-reentrant"
)

FAILURE = Failure(
    title="ZeRO-3 with LoRA and non-reentrant checkpointing ends in a CheckpointError",
    records=(
        "https://github.com/huggingface/trl/issues/5217",
        FIX,
        "https://github.com/hiyouga/LLaMA-Factory/issues/6438",
    ),
    since="deepspeed 0.17.6 (the oldest that was tried)",
    until="deepspeed 0.19.3",
    upstream="deepspeedai/DeepSpeed",
    reported=Reported("deepspeed-0.18.3", "broken", "zero3", "non-reentrant", good="deepspeed-0.19.3"),
    fixes=(Turn("deepspeed", "0.19.3", ZERO3, BISECT),),
    signatures={
        "recomputed-empty": r"(?s)Recomputed values for the following tensors have different metadata.*"
        r"'shape': torch\.Size\(\[0\]\)",
    },
    # ddp_peft_reentrant_ready_twice, grpo_lora_no_grad
    elsewhere=("marked-ready-twice", "no-grad-fn", "not-a-loss"),
    variants=(
        Variant("broken", needs=ADAPTER),
        Variant("nothing_frozen", strategies=("zero*",), checkpointing=("non-reentrant",)),
        Variant(
            "broken",
            trainer="sft",
            strategies=("single", "zero2", "zero3"),
            checkpointing=("reentrant", "non-reentrant"),
            needs=ADAPTER,
            package="deepspeed",
        ),
    ),
    claims={
        "a": Claim("deepspeed 0.19.3 or newer", swap={"stack": "deepspeed-0.19.3"}, where=ZERO3, source=FIX),
        "b": Claim(
            '`gradient_checkpointing_kwargs={"use_reentrant": True}`, against the usual advice',
            swap={"checkpointing": "reentrant"},
            where=ZERO3,
        ),
        "c": Claim("nothing frozen inside of the blocks", swap={"remedy": "nothing_frozen"}, where=ZERO3),
    },
)


def lora(frozen):
    from tiny_models.qwen2 import add_lora, qwen2

    model = add_lora(qwen2())
    return model if frozen else model.requires_grad_(True)


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch

    return Scenario(lora(frozen=remedy != "nothing_frozen"), causal_lm_loss, text_batch)


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.tokenizer import tokenizer

    words = tokenizer(padding_side="right")
    return SFTTrainer(lora(True), SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
