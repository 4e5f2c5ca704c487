"""An adapter that is attached to a model which transformers sharded as it loaded it: nothing synchronises it."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, present, trains, variants

FOUND = "https://github.com/huggingface/transformers/pull/48792"
SHARDED = ("native-fsdp", "native-hsdp", "ep-fsdp", "fsdp-tp")

OF_QWEN2 = tuple(name for name in SHARDED if name != "ep-fsdp")  # which has no experts

FAILURE = Failure(
    title="Each rank trains an adapter of its own on a model that was sharded at load",
    first_seen="Qwen3-MoE with LoRA in TRL's `SFTTrainer`, loaded with `distributed_config=`",
    since="transformers 5.16, whose `from_pretrained(distributed_config=...)` shards for training",
    until="fixed in transformers' `Trainer` (5.23.0); not in a loop of one's own, nor with accelerate",
    upstream="huggingface/transformers",
    checkpointing=("off",),  # checkpointing has no part in which gradients are reduced
    also_raises=("halved-adapter", "row-parallel-adapter"),  # on a mesh of two axes, PEFT gives them another size
    variants=(
        *variants("broken averaged", strategies=("single", "ddp", "fsdp2", "tp", *OF_QWEN2)),
        Variant(
            "experts_broken", strategies=("single", *SHARDED), text="a mixture of experts, whose attention has LoRA"
        ),
        Variant("broken", "sft", strategies=("single", "ddp", "tp", "native-fsdp")),
    ),
    claims={
        FOUND: (
            helps(
                "broadcast what isn't a DTensor from rank 0, and average its gradient in a post-accumulate hook",
                "broken",
                remedy="averaged",
            ),
            trains(
                "the loss, whose forward pass is exact, under tensor parallelism, where ranks share rows", "broken/tp"
            ),
        ),
        "https://github.com/huggingface/transformers/pull/48873": trains(
            "transformers' `Trainer` (5.23)", "sft-broken"
        ),
        TRIED_HERE: (
            present("the same seed on every rank", "broken/native-fsdp", key="same_seed"),
            helps(
                "FSDP2 by accelerate or by hand, with the adapter attached before",
                "broken/native-fsdp",
                strategy="fsdp2",
            ),
        ),
    },
)


def average(model):
    """What FSDP doesn't shard: rank 0's values, and the mean of the ranks' gradients."""
    from torch import distributed
    from torch.distributed.tensor import DTensor

    def mean(parameter):
        distributed.all_reduce(parameter.grad)
        parameter.grad /= distributed.get_world_size()

    for parameter in model.parameters():
        if parameter.requires_grad and not isinstance(parameter, DTensor):
            distributed.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(mean)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, add_lora, causal_lm_loss, qwen2, text_batch
    from tiny_models.qwen3_moe import qwen3_moe

    model = add_lora(qwen3_moe() if remedy == "experts_broken" else qwen2())
    if remedy == "averaged" and setup.strategy in SHARDED:
        average(model)
    return Scenario(model, causal_lm_loss, text_batch)


def trainer(variant, arguments, setup):
    from tiny_models.kit import add_lora, qwen2, sft_trainer

    return sft_trainer(add_lora(qwen2()), arguments)
