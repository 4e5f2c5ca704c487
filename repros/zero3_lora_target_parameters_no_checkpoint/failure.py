"""LoRA on fused experts (`target_parameters`) under ZeRO-3 ends in the backward pass without checkpointing."""

from faultline.catalogue import Claim, Failure, Mechanism, Variant

INJECTION = "https://github.com/huggingface/peft/pull/3576"
MODULES = {"lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
MATRICES = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EXPERTS = {"lora_dropout": 0.0, "target_modules": None, "target_parameters": MATRICES}
NEEDS = ("adapter", "target_parameters")

FAILURE = Failure(
    title="LoRA with `target_parameters` under ZeRO-3 ends in the backward pass unless checkpointing is on",
    records=(
        "https://github.com/huggingface/peft/issues/2916",
        "https://github.com/huggingface/peft/issues/2855",
        INJECTION,
        "https://github.com/huggingface/peft/issues/3080",
        "https://github.com/huggingface/peft/pull/3102",
        "https://github.com/AgileRL/AgileRL/pull/658",
        "https://github.com/huggingface/peft/issues/297",
    ),
    since="peft 0.21.2 with deepspeed 0.19.8 (no older ones were tried)",
    until="open, and not reported in this form",
    upstream="huggingface/peft",
    # ddp_peft_reentrant_ready_twice, zero3_nonreentrant_frozen_checkpointerror
    elsewhere=("marked-ready-twice", "recomputed-empty"),
    signatures={
        "released-weight": r"The size of tensor a \(0\) must match the size of tensor b \(\d+\)",
        # FSDP1, whose modules hold views of a flat parameter: in the first pass, and when a segment runs again.
        "view-modified": r"Output 0 of View is a view and its base or another view of its base has been modified",
        "already-there": r"Module already has an attribute named '(?:gate_up|down)_proj'",
        "flat-shard": r"shape '\[.*\]' is invalid for input of size",
    },
    context=dict.fromkeys(
        ("released-weight", "view-modified", "flat-shard"),
        r"target_parameters|ParamWrapper|_LoraParameterProxy|layer\.py\", line \d{1,6}, in _activate_lora",
    ),
    told_by={"released-weight": "adapters by `target_parameters`"},
    mechanism={
        "released-weight": Mechanism(
            "a weight that the backward pass needs, and that ZeRO-3 has released after the forward pass",
            r"(?s)\A(?=.*deepspeed/runtime/(?:engine|zero/stage3)\.py\", line \d{1,6}, in backward)"
            r"(?=.*in (?:_engine_run_backward|backward)\n[^\n]*run_backward\()",
        )
    },
    variants=(
        Variant("broken", needs=NEEDS, package="peft"),
        Variant("target_modules", strategies=("single", "ddp", "zero2", "zero3", "fsdp2"), checkpointing=("off",)),
        Variant(
            "broken",
            "sft",
            ("single", "ddp", "zero2", "zero3", "fsdp2"),
            checkpointing=("off", "reentrant"),
            needs=NEEDS,
            package="peft",
        ),
        Variant("aux_loss", "sft", ("single",)),
    ),
    claims={
        "a": Claim(
            "gradient checkpointing, reentrant",
            swap={"checkpointing": "reentrant"},
            where={"strategy": "zero3*", "checkpointing": "off"},
        ),
        "a2": Claim(
            "gradient checkpointing, reentrant, with the router's auxiliary loss that TRL adds by default",
            kind="present",
            where={"variant": "sft-aux_loss", "checkpointing": "reentrant"},
        ),
        "b": Claim(
            "gradient checkpointing, non-reentrant",
            swap={"checkpointing": "non-reentrant"},
            where={"variant": "broken", "strategy": "zero3*", "checkpointing": "off"},
        ),
        "b2": Claim(
            "gradient checkpointing, non-reentrant, with the router's auxiliary loss",
            kind="trains",
            where={"variant": "sft-aux_loss", "checkpointing": "non-reentrant"},
        ),
        "c": Claim(
            "ZeRO-2",
            swap={"strategy": "zero2"},
            where={"strategy": "zero3*"},
            general="ZeRO-2, which releases no weights",
        ),
        "d": Claim(
            "a newer peft, up to 0.21.2, whose injection works",
            kind="present",
            where={"strategy": "zero3*", "checkpointing": "off", "variant": "*broken"},
            source=INJECTION,
        ),
        "e": Claim(
            "`zero3_init_flag: false`",
            kind="present",
            where={"strategy": "zero3*", "checkpointing": "off", "variant": "broken"},
        ),
        "f": Claim(
            "`target_modules`, which leaves the experts out",
            swap={"remedy": "target_modules"},
            where={"variant": "broken", "checkpointing": "off"},
        ),
    },
)


def scenario(remedy, setup):
    from faultline.scenario import Scenario, causal_lm_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import add_lora
    from tiny_models.qwen3_moe import qwen3_moe

    return Scenario(
        add_lora(qwen3_moe(), **(MODULES if remedy == "target_modules" else EXPERTS)), causal_lm_loss, text_batch
    )


def trainer(variant, arguments, setup):
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import add_lora
    from tiny_models.qwen3_moe import qwen3_moe
    from tiny_models.tokenizer import tokenizer

    model, words = add_lora(qwen3_moe(), **EXPERTS), tokenizer(padding_side="right")
    # No mean over the ranks: with it, no strategy does what one process does.
    model.config.router_aux_loss_coef = 1.0 if variant.remedy == "aux_loss" else 0.0
    return SFTTrainer(model, SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
