"""`save_pretrained` under ZeRO-3 writes tensors without elements."""

from faultline.catalogue import Claim, Failure, Variant

OFF = ("off",)  # checkpointing has no part in what is saved
SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="`save_pretrained` under ZeRO-3 writes tensors without elements",
    records=(
        "https://github.com/huggingface/transformers/issues/20082",
        "https://github.com/deepspeedai/DeepSpeed/issues/2413",
        "https://github.com/axolotl-ai-cloud/axolotl/issues/933",
        "https://github.com/deepspeedai/DeepSpeed/issues/3841",
        "https://github.com/OpenRLHF/OpenRLHF/issues/839",
        "https://github.com/ymcui/Chinese-LLaMA-Alpaca-2/issues/222",
    ),
    since="deepspeed's ZeRO-3 (2021)",
    until="not fixed: a partitioned parameter is empty unless it is gathered, and `save_pretrained` gathers nothing",
    upstream="huggingface/transformers",
    signatures={
        # FSDP2's tensors aren't plain ones, which safetensors finds out.
        "no-storage": r"Attempted to access the data pointer on an invalid python storage",
        # What the tensors are loaded with, by torch and by transformers 5.
        "mismatched": r"Error\(s\) in loading state_dict|You set `ignore_mismatched_sizes` to `False`",
    },
    context={"mismatched": r"param with shape torch\.Size\(\[0\]\) from checkpoint|ckpt: torch\.Size\(\[0\]\)"},
    later={"mismatched": "checkpoint-lacks"},
    variants=(
        Variant("broken", checkpointing=OFF, look="`model.save_pretrained(folder)` in a loop of one's own"),
        Variant("torch_save", checkpointing=OFF, look="`torch.save(model.state_dict(), file)`"),
        Variant("unsafe", checkpointing=OFF, strategies=("single", "zero3", "fsdp1-full", "fsdp2")),
        Variant("main_process", checkpointing=OFF),
        Variant("ignore_mismatched", checkpointing=OFF),
        Variant("state_dict", checkpointing=OFF),
        Variant("zero_to_fp32", checkpointing=OFF, strategies=("zero*",)),
        Variant("tied_state_dict", checkpointing=OFF, strategies=SOME),
        Variant("tied_zero_to_fp32", checkpointing=OFF, strategies=("zero2", "zero3")),
        Variant("broken", checkpointing=OFF, trainer="sft", look="`trainer.model.save_pretrained(folder)`"),
        Variant("save_model", checkpointing=OFF, trainer="sft"),
        Variant("tied_save_model", checkpointing=OFF, trainer="sft", strategies=SOME),
        Variant("lora_save_model", checkpointing=OFF, trainer="sft", strategies=SOME),
    ),
    claims={
        "a": Claim(
            "`trainer.save_model(folder)` on all ranks, with `stage3_gather_16bit_weights_on_model_save`",
            swap={"remedy": "save_model"},
            where={"variant": "sft-broken"},
        ),
        "b": Claim(
            "`save_pretrained(folder, state_dict=accelerator.get_state_dict(engine))`",
            swap={"remedy": "state_dict"},
        ),
        "c": Claim(
            "`engine.save_checkpoint(folder)`, then `zero_to_fp32.py`",
            swap={"remedy": "zero_to_fp32"},
            where={"strategy": "zero*"},
        ),
        "d": Claim("save on the main process only", swap={"remedy": "main_process"}),
        "e": Claim(
            "`accelerator.unwrap_model(engine)` first",
            kind="present",
            where={"variant": "broken", "strategy": "zero3*"},
        ),
        "f": Claim("`torch.save(model.state_dict(), file)`", swap={"remedy": "torch_save"}),
        "f2": Claim(
            "`save_pretrained(folder, safe_serialization=False)`",
            swap={"remedy": "unsafe"},
            where={"variant": "broken"},
        ),
        "g": Claim(
            "`ignore_mismatched_sizes=True` when it is loaded, as the error says",
            swap={"remedy": "ignore_mismatched"},
        ),
        "h": Claim("ZeRO-2", swap={"strategy": "zero2"}, where={"strategy": "zero3*"}),
        "i": Claim("gathered like that, tied embeddings come back tied", kind="trains", where={"variant": "tied_*"}),
        "j": Claim("`save_model` writes tied embeddings once", kind="trains", where={"variant": "sft-tied_save_model"}),
        "k": Claim(
            "`save_model` writes the whole of a LoRA adapter", kind="trains", where={"variant": "sft-lora_save_model"}
        ),
    },
)

GATHER = {"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": True}}


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import qwen2

    model = qwen2(tie_word_embeddings=remedy.startswith("tied_"))
    gather = GATHER if remedy.endswith("state_dict") else {}
    return Scenario(model, causal_lm_loss, text_batch, accelerate=True, deepspeed=gather)


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from faultline.trainer import changed_config
    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import add_lora, qwen2
    from tiny_models.tokenizer import tokenizer

    if variant.remedy.endswith("save_model"):
        arguments = changed_config(arguments, GATHER, setup)
    config = SFTConfig(**arguments)
    model = qwen2(tie_word_embeddings=variant.remedy.startswith("tied_"))
    model = add_lora(model) if variant.remedy.startswith("lora_") else model
    return SFTTrainer(model, config, train_dataset=text_dataset(), processing_class=tokenizer())


def save(variant, trained, folder):
    import torch

    if variant.remedy.endswith("save_model"):
        return trained.save_model(folder)
    accelerator = trained.accelerator
    engine = trained.model_wrapped if variant.trainer else trained.model
    model, main = accelerator.unwrap_model(engine), accelerator.is_main_process
    remedy = variant.remedy.removeprefix("tied_")
    if remedy == "zero_to_fp32":
        engine.save_checkpoint(folder)
    elif remedy == "state_dict":
        model.save_pretrained(folder, state_dict=accelerator.get_state_dict(engine), is_main_process=main)
    elif remedy == "torch_save":
        state = model.state_dict()
        if main:
            model.config.save_pretrained(folder)
            torch.save(state, folder / "pytorch_model.bin")
    elif remedy == "main_process":
        if main:
            model.save_pretrained(folder)
    elif remedy == "unsafe":
        model.save_pretrained(folder, is_main_process=main, safe_serialization=False)
    else:
        model.save_pretrained(folder, is_main_process=main)


def load(variant, folder):
    """As a user would; of `tied_save_model` the file itself, for a model that is loaded from it is tied anew."""
    from transformers import Qwen2ForCausalLM

    from tiny_models.checkpoints import state_dict

    if variant.remedy == "tied_save_model":
        written = state_dict(folder)
        return {"lm_head.weight": written["model.embed_tokens.weight"], **written}
    if variant.remedy == "lora_save_model":
        from peft import PeftModel

        from tiny_models.qwen2 import qwen2

        return PeftModel.from_pretrained(qwen2(), folder)
    if variant.remedy.endswith("zero_to_fp32"):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return get_fp32_state_dict_from_zero_checkpoint(folder)
    return Qwen2ForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=variant.remedy == "ignore_mismatched")
