"""ZeRO-3 with non-reentrant checkpointing of blocks that hold frozen parameters: recomputed values have shape [0]."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps

FIX = "https://github.com/deepspeedai/DeepSpeed/pull/8148"

FAILURE = Failure(
    title="CheckpointError: frozen weights under ZeRO-3 with non-reentrant checkpointing",
    first_seen="LoRA training with LLaMA-Factory and with TRL",
    since="deepspeed 0.17.6 (the oldest that was tried)",
    until="deepspeed 0.19.3",
    upstream="deepspeedai/DeepSpeed",
    errors={
        "recomputed-empty": r"(?s)Recomputed values for the following tensors have different metadata.*"
        r"'shape': (?:torch\.Size\()?\[0\]"
    },
    # ddp_peft_reentrant_ready_twice, grpo_lora_no_grad
    also_raises=("halved-adapter", "row-parallel-adapter", "marked-ready-twice", "no-grad-fn", "not-a-loss"),
    variants=(
        Variant("nothing_frozen", strategies=("zero*",), checkpointing=("non-reentrant",)),
        Variant(
            "broken",
            trainer="sft",
            strategies=("single", "zero2", "zero3"),
            checkpointing=("reentrant", "non-reentrant"),
        ),
    ),
    claims={
        FIX: helps("deepspeed 0.19.3 or newer", "broken/zero3*/non-reentrant", stack="deepspeed-0.19.3"),
        "https://github.com/huggingface/trl/pull/6356": helps(
            '`gradient_checkpointing_kwargs={"use_reentrant": True}`, against the usual advice',
            "broken/zero3*/non-reentrant",
            checkpointing="reentrant",
        ),
        TRIED_HERE: helps(
            "nothing frozen inside of the blocks", "broken/zero3*/non-reentrant", remedy="nothing_frozen"
        ),
    },
)


def lora(frozen):
    from tiny_models.kit import add_lora, qwen2

    model = add_lora(qwen2())
    return model if frozen else model.requires_grad_(True)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, text_batch

    return Scenario(lora(frozen=remedy != "nothing_frozen"), causal_lm_loss, text_batch)


def trainer(variant, arguments, setup):
    from tiny_models.kit import sft_trainer

    return sft_trainer(lora(True), arguments)
