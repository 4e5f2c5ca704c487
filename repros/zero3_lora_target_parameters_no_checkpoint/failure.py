"""LoRA on fused experts (`target_parameters`) under ZeRO-3 ends in the backward pass without checkpointing."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, present, trains

SOME = ("single", "ddp", "zero2", "zero3", "fsdp2")
INJECTION = "https://github.com/huggingface/peft/pull/3576"
MODULES = {"lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj"]}
MATRICES = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
EXPERTS = {"lora_dropout": 0.0, "target_modules": None, "target_parameters": MATRICES}

FAILURE = Failure(
    title="LoRA on `target_parameters` fails under ZeRO-3 unless checkpointing is on",
    first_seen="the fused experts of a Qwen3-MoE, in this catalogue",
    since="peft 0.21.2 with deepspeed 0.19.8 (no older ones were tried)",
    until="open, and not reported in this form",
    upstream="huggingface/peft",
    errors={
        "released-weight": r"The size of tensor a \(0\) must match the size of tensor b \(\d+\)",
        # FSDP1, whose modules hold views of a flat parameter: in the first pass, and when a segment runs again.
        "view-modified": r"Output 0 of View\w* is a view and its base or another view of its base has been modified",
        "already-there": r"Module already has an attribute named '(?:gate_up_proj|down_proj|weight)'",
        "flat-shard": r"shape '\[.*\]' is invalid for input of size",
    },
    # ddp_peft_reentrant_ready_twice, zero3_nonreentrant_frozen_checkpointerror
    also_raises=("expert-adapter", "mixed-dtensor", "marked-ready-twice", "recomputed-empty"),
    variants=(
        Variant("target_modules", strategies=SOME, checkpointing=("off",)),
        Variant("broken", trainer="sft", strategies=SOME, checkpointing=("off", "reentrant")),
        Variant("aux_loss", trainer="sft", strategies=("single",), text="with the router's auxiliary loss"),
    ),
    claims={
        INJECTION: present("a newer peft, up to 0.21.2, whose injection works", "*broken/zero3*/off", key="newer_peft"),
        TRIED_HERE: (
            helps("gradient checkpointing, reentrant", "*broken/zero3*/off", checkpointing="reentrant"),
            present(
                "gradient checkpointing, reentrant, with the router's auxiliary loss that TRL adds by default",
                "sft-aux_loss/*/reentrant",
                key="reentrant+aux_loss",
            ),
            helps("gradient checkpointing, non-reentrant", "broken/zero3*/off", checkpointing="non-reentrant"),
            trains(
                "gradient checkpointing, non-reentrant, with the router's auxiliary loss",
                "sft-aux_loss/*/non-reentrant",
                key="non-reentrant+aux_loss",
            ),
            helps("ZeRO-2", "*broken/zero3*", strategy="zero2"),
            present("`zero3_init_flag: false`", "broken/zero3*/off", key="zero3_init_flag"),
            helps("`target_modules`, which leaves fused experts out", "broken/*/off", remedy="target_modules"),
        ),
    },
)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, add_lora, causal_lm_loss, text_batch
    from tiny_models.qwen3_moe import qwen3_moe

    model = add_lora(qwen3_moe(), **(MODULES if remedy == "target_modules" else EXPERTS))
    return Scenario(model, causal_lm_loss, text_batch)


def trainer(variant, arguments, setup):
    from tiny_models.kit import add_lora, sft_trainer
    from tiny_models.qwen3_moe import qwen3_moe

    model = add_lora(qwen3_moe(), **EXPERTS)
    # No mean over the ranks: with it, no strategy does what one process does.
    model.config.router_aux_loss_coef = 1.0 if variant.remedy == "aux_loss" else 0.0
    return sft_trainer(model, arguments)
