"""LoRA with reentrant checkpointing under DDP: a parameter is marked as ready twice."""

from faultline.catalogue import Claim, Failure, Mechanism, Variant

PEFT = "https://github.com/huggingface/peft/issues/313"
DEFAULT = "https://github.com/huggingface/trl/pull/4811"
ADAPTER = ("adapter",)

DDP = ("single", "ddp*")
FIND_UNUSED = ("ddp-find-unused",)
CHECKPOINTED = ("reentrant", "non-reentrant")

FAILURE = Failure(
    title="LoRA with reentrant checkpointing under DDP marks a parameter as ready twice",
    records=(
        "https://github.com/huggingface/transformers/issues/23018",
        PEFT,
        "https://github.com/huggingface/peft/issues/663",
        "https://github.com/huggingface/peft/issues/1745",
        "https://github.com/huggingface/trl/issues/480",
        "https://github.com/huggingface/trl/issues/831",
        "https://github.com/huggingface/trl/issues/835",
        "https://github.com/huggingface/trl/issues/921",
        "https://github.com/artidoro/qlora/issues/223",
        "https://github.com/huggingface/trl/issues/4782",
        DEFAULT,
        "https://github.com/huggingface/transformers/pull/43203",
    ),
    since="2023-04 at the latest",
    until="not fixed: TRL and transformers take non-reentrant checkpointing by default now; reentrant is as it was",
    upstream="huggingface/transformers",
    report="sft-default_broken/*",
    signatures={
        "marked-ready-twice": r"Expected to mark a variable ready only once",
    },
    # An adapter's parameter, or an adapter where DDP was told to look for unused ones.
    context={
        "marked-ready-twice": r"(?s)\A(?=.*(?:\bLo[Rr]A\b|\blora_|use_lora|[pP]eft|PEFT|base_model\.model))"
        r"(?=.*(?:with name [\w.]*\blora_(?:[AB]|embedding|magnitude)|find_unused_parameters['\"]?[=: ]{1,3}True(?!`)))"
    },
    told_by={"marked-ready-twice": "an adapter, such as LoRA, and `find_unused_parameters=True`, a trainer's default"},
    mechanism={
        "marked-ready-twice": Mechanism(
            "reentrant checkpointing, whose own backward passes DDP doesn't foresee, makes a parameter ready once more",
            r"utils[./]checkpoint|[gG]radient[_ ]checkpointing|use_reentrant",
        )
    },
    # ddp_static_graph_no_sync, zero3_nonreentrant_frozen_checkpointerror, grpo_lora_no_grad
    elsewhere=("static-graph-no-sync", "recomputed-empty", "no-grad-fn", "not-a-loss"),
    variants=(
        Variant("broken", needs=ADAPTER),
        Variant(
            "two_forwards_broken",
            strategies=DDP,
            checkpointing=CHECKPOINTED,
            look="two forward passes and one backward pass",
        ),
        Variant("accumulation_broken", strategies=DDP, checkpointing=CHECKPOINTED, needs=(*ADAPTER, "accumulation")),
        Variant("broken", trainer="sft", strategies=DDP, checkpointing=CHECKPOINTED, needs=ADAPTER, package="torch"),
        Variant("default_broken", trainer="sft", strategies=FIND_UNUSED, checkpointing=CHECKPOINTED, needs=ADAPTER),
    ),
    claims={
        "a": Claim(
            '`gradient_checkpointing_kwargs={"use_reentrant": False}`',
            swap={"checkpointing": "non-reentrant"},
            source=DEFAULT,
            general='`gradient_checkpointing_kwargs={"use_reentrant": False}`',
        ),
        "b": Claim(
            "`ddp_find_unused_parameters=False`",
            swap={"strategy": "ddp"},
            where={"strategy": "ddp-find-unused"},
            general="`ddp_find_unused_parameters=False`, where it is True",
        ),
        "c": Claim(
            "`static_graph=True`",
            swap={"strategy": "ddp-static-graph"},
            where={"strategy": "ddp*"},
            general="`static_graph=True`, where every step uses the same parameters",
        ),
        "d": Claim(
            "`find_unused_parameters=True`, the advice of the opposite error",
            swap={"strategy": "ddp-find-unused"},
            where={"strategy": "ddp"},
        ),
        "e": Claim("ZeRO-2 instead of DDP", swap={"strategy": "zero2"}, where={"strategy": "ddp*"}),
        "f": Claim(
            "`ddp_find_unused_parameters=False` in the trainer's arguments, where nothing is said of it",
            swap={"variant": "sft-broken", "strategy": "ddp"},
            where={"variant": "sft-default_broken"},
        ),
    },
)


def scenario(remedy, setup):
    from faultline.scenario import Scenario, next_token_loss
    from tiny_models.data import text_batch
    from tiny_models.qwen2 import add_lora, qwen2

    def loss(model, batch):
        one = next_token_loss(model(input_ids=batch["input_ids"]).logits, batch)
        if remedy != "two_forwards_broken":
            return one
        return (one + next_token_loss(model(input_ids=batch["input_ids"].flip(1)).logits, batch)) / 2

    return Scenario(add_lora(qwen2()), loss, text_batch, micro_batches=2 if remedy == "accumulation_broken" else 1)


def trainer(variant, arguments, setup):
    """TRL's trainer with the adapter's config; what `default_broken` doesn't say is `ddp_find_unused_parameters`."""
    from trl import SFTConfig, SFTTrainer

    from tiny_models.data import text_dataset
    from tiny_models.qwen2 import add_lora, qwen2
    from tiny_models.tokenizer import tokenizer

    if variant.remedy == "default_broken":
        arguments = {key: value for key, value in arguments.items() if key != "ddp_find_unused_parameters"}
    words = tokenizer(padding_side="right")
    return SFTTrainer(add_lora(qwen2()), SFTConfig(**arguments), train_dataset=text_dataset(), processing_class=words)
