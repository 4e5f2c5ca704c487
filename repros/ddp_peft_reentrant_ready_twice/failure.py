"""LoRA with reentrant checkpointing under DDP: a parameter is marked as ready twice."""

from faultline.catalogue import EVERY_MODE, TRIED_HERE, Failure, Variant, helps

TRANSFORMERS = "https://github.com/huggingface/transformers/issues/15191"
DEFAULT = "https://github.com/huggingface/trl/pull/4811"
DDP = ("single", "ddp*")

FAILURE = Failure(
    title="Reentrant checkpointing under DDP marks a parameter as ready twice",
    first_seen="LoRA training, for which transformers' `Trainer` sets `find_unused_parameters=True`",
    since="2023-04 at the latest",
    until="not fixed: TRL and transformers take non-reentrant checkpointing by default now; reentrant is as it was",
    upstream="huggingface/transformers",
    checkpointing=("reentrant", "non-reentrant"),
    errors={
        "marked-ready-twice": r"Expected to mark a variable ready only once|has been marked as ready twice"
        r"|multiple autograd engine +hooks have fired|in multiple reentrant backward passes"
    },
    # ddp_static_graph_no_sync, zero3_nonreentrant_frozen_checkpointerror, grpo_lora_no_grad
    also_raises=(
        "halved-adapter",
        "row-parallel-adapter",
        "static-graph-no-sync",
        "recomputed-empty",
        "no-grad-fn",
        "not-a-loss",
    ),
    variants=(
        Variant("broken", checkpointing=EVERY_MODE),
        Variant("two_forwards_broken", "", DDP, text="the failure, with two forward passes before one backward pass"),
        Variant("accumulation_broken", "", DDP, text="the failure, with two micro-batches under `no_sync()`"),
        Variant("broken", "sft", DDP),
        Variant(
            "default_broken",
            "sft",
            ("ddp-find-unused",),
            text="the failure, with the arguments as they are by default",
        ),
    ),
    claims={
        DEFAULT: helps('`gradient_checkpointing_kwargs={"use_reentrant": False}`', checkpointing="non-reentrant"),
        TRANSFORMERS: helps("`ddp_find_unused_parameters=False`", "*broken/ddp-find-unused", strategy="ddp"),
        "https://github.com/huggingface/transformers/pull/45519": helps(
            "`static_graph=True`", "*broken/ddp*", strategy="ddp-static-graph"
        ),
        "https://github.com/artidoro/qlora/pull/222": helps(
            "`ddp_find_unused_parameters=False` in the trainer's arguments, where nothing is said of it",
            "sft-default_broken",
            variant="sft-broken",
            strategy="ddp",
        ),
        TRIED_HERE: (
            helps(
                "`find_unused_parameters=True`, the advice of the opposite error",
                "*broken/ddp",
                strategy="ddp-find-unused",
            ),
            helps("ZeRO-2 instead of DDP", "*broken/ddp*", strategy="zero2"),
        ),
    },
)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, add_lora, next_token_loss, qwen2, text_batch

    def loss(model, batch):
        one = next_token_loss(model(input_ids=batch["input_ids"]).logits, batch)
        if remedy != "two_forwards_broken":
            return one
        return (one + next_token_loss(model(input_ids=batch["input_ids"].flip(1)).logits, batch)) / 2

    return Scenario(add_lora(qwen2()), loss, text_batch, micro_batches=2 if remedy == "accumulation_broken" else 1)


def trainer(variant, arguments, setup):
    """TRL's trainer with the adapter's config; what `default_broken` doesn't say is `ddp_find_unused_parameters`."""
    from tiny_models.kit import add_lora, qwen2, sft_trainer

    if variant.remedy == "default_broken":
        arguments = {key: value for key, value in arguments.items() if key != "ddp_find_unused_parameters"}
    return sft_trainer(add_lora(qwen2()), arguments)
