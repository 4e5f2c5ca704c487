"""`save_pretrained` under ZeRO-3 writes tensors without elements."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, present, trains

DEEPSPEED = "https://github.com/deepspeedai/DeepSpeed/issues/7501"
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="`save_pretrained` under ZeRO-3 writes tensors without elements",
    first_seen="transformers and accelerate with DeepSpeed",
    since="deepspeed's ZeRO-3 (2021)",
    until="not fixed: a partitioned parameter is empty unless it is gathered, and `save_pretrained` gathers nothing",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in what is saved
    errors={
        # Of FSDP2's tensors, by safetensors.
        "no-storage": r"Attempted to access the data pointer on an invalid python storage",
        # What the tensors are loaded with, by torch and by transformers 5.
        "mismatched": r"Error\(s\) in loading state_dict|param with shape torch\.Size\(\[[01]\]\) from checkpoint"
        r"|shapes? (?:of )?torch\.Size\(\[0\]\) (?:from|in) the checkpoint"
        r"|(?:Trying to set a tensor of shape |Attempted to load weight \(|expected shape [^\n]{1,200}, but got )"
        r"torch\.Size\(\[0\]\)|You set `ignore_mismatched_sizes` to `False`",
    },
    variants=(
        Variant("unsafe", strategies=("single", "zero3", "fsdp1-full", "fsdp2")),
        Variant("tied_state_dict", strategies=SOME, text="`state_dict`, with tied embeddings"),
        Variant("tied_zero_to_fp32", strategies=("zero2", "zero3"), text="`zero_to_fp32`, with tied embeddings"),
        Variant("broken", trainer="sft"),
        Variant("tied_save_model", "sft", SOME, text="`save_model` with tied embeddings; the file is looked at"),
        Variant("lora_save_model", "sft", SOME, text="`save_model` of an adapter"),
    ),
    claims={
        "https://huggingface.co/docs/transformers/deepspeed": helps(
            "`trainer.save_model(folder)` on all ranks, with `stage3_gather_16bit_weights_on_model_save`",
            "sft-broken",
            remedy="save_model",
        ),
        "https://huggingface.co/docs/accelerate/usage_guides/deepspeed": (
            helps("`save_pretrained(folder, state_dict=accelerator.get_state_dict(engine))`", remedy="state_dict"),
            helps("`engine.save_checkpoint(folder)`, then `zero_to_fp32.py`", "*broken/zero*", remedy="zero_to_fp32"),
        ),
        DEEPSPEED: present("`accelerator.unwrap_model(engine)` first", "broken/zero3*", key="unwrap_model"),
        "https://github.com/OpenRLHF/OpenRLHF/issues/839": helps(
            "`ignore_mismatched_sizes=True` when it is loaded, as the error says", remedy="ignore_mismatched"
        ),
        "https://github.com/axolotl-ai-cloud/axolotl/issues/933": helps("ZeRO-2", "*broken/zero3*", strategy="zero2"),
        TRIED_HERE: (
            helps("save on the main process only", remedy="main_process"),
            helps("`torch.save(model.state_dict(), file)`", remedy="torch_save"),
            helps("`save_pretrained(folder, safe_serialization=False)`", "broken", remedy="unsafe"),
            trains("gathered like that, tied embeddings come back tied", "tied_*"),
            trains("`save_model` writes tied embeddings once", "sft-tied_save_model"),
            trains("`save_model` writes the whole of a LoRA adapter", "sft-lora_save_model"),
        ),
    },
)


def scenario(remedy, setup):
    from tiny_models.checkpoints import GATHER
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    model = qwen2(tie_word_embeddings=remedy.startswith("tied_"))
    gather = GATHER if remedy.endswith("state_dict") else {}
    return Scenario(model, causal_lm_loss, text_batch, accelerate=True, deepspeed=gather)


def trainer(variant, arguments, setup):
    from faultline.trainers import changed_config
    from tiny_models.checkpoints import GATHER
    from tiny_models.kit import add_lora, qwen2, sft_trainer

    if variant.remedy.endswith("save_model"):
        arguments = changed_config(arguments, GATHER, setup)
    model = qwen2(tie_word_embeddings=variant.remedy.startswith("tied_"))
    return sft_trainer(add_lora(model) if variant.remedy.startswith("lora_") else model, arguments, "left")


def save(variant, trained, folder):
    import torch

    remedy = variant.remedy.removeprefix("tied_")
    if remedy.endswith("save_model"):
        return trained.save_model(folder)
    accelerator = trained.accelerator
    engine = trained.model_wrapped if variant.trainer else trained.model
    model, main = accelerator.unwrap_model(engine), accelerator.is_main_process
    if remedy == "zero_to_fp32":
        engine.save_checkpoint(folder)
    elif remedy == "state_dict":
        model.save_pretrained(folder, state_dict=accelerator.get_state_dict(engine), is_main_process=main)
    elif remedy == "torch_save":
        state = model.state_dict()
        if main:
            model.config.save_pretrained(folder)
            torch.save(state, folder / "pytorch_model.bin")
    elif main or remedy != "main_process":
        model.save_pretrained(folder, is_main_process=main, safe_serialization=remedy != "unsafe")


def load(variant, folder):
    """As a user would; of `tied_save_model` the file itself, for a model that is loaded from it is tied anew."""
    from transformers import Qwen2ForCausalLM

    from tiny_models.checkpoints import state_dict

    if variant.remedy == "tied_save_model":
        written = state_dict(folder)
        return {"lm_head.weight": written["model.embed_tokens.weight"], **written}
    if variant.remedy == "lora_save_model":
        from peft import PeftModel

        from tiny_models.kit import qwen2

        return PeftModel.from_pretrained(qwen2(), folder)
    if variant.remedy.endswith("zero_to_fp32"):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return get_fp32_state_dict_from_zero_checkpoint(folder)
    return Qwen2ForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=variant.remedy == "ignore_mismatched")
