"""FSDP1 that doesn't shard, as on one GPU, gives weights that are not contiguous the gradients of other elements."""

from faultline.catalogue import TRIED_HERE, Failure, helps, trains, variants

SOME = ("single", "ddp", "fsdp1-full", "fsdp1-no-shard", "fsdp2", "zero2", "zero3")
LAYOUT = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"

FAILURE = Failure(
    title="FSDP1 on one GPU scrambles gradients of channels_last and transposed weights",
    first_seen="`faultline explore`'s findings, tried with a vision tower in channels_last; no report was found",
    since="torch 2.6, which first kept such weights as they are",
    until="not fixed: the gradient's elements are taken in the order of a contiguous weight",
    upstream="pytorch/pytorch",
    errors={
        # As FSDP2 and DeepSpeed refuse what FSDP1 takes.
        "not-contiguous": r"FSDP does not support non-contiguous parameters|must be 1 to view \w+ as Byte",
    },
    checkpointing=("off",),
    variants=(*variants("broken transposed_broken contiguous transposed_contiguous", strategies=SOME),),
    claims={
        LAYOUT: trains("`model.to(memory_format=torch.channels_last)` changes no results", "broken"),
        TRIED_HERE: (
            helps("`parameter.data = parameter.data.contiguous()` before wrapping", "broken", remedy="contiguous"),
            helps("the same, for a transposed weight", "transposed_broken", remedy="transposed_contiguous"),
            helps("shards, on two ranks or more", "*broken/fsdp1-no-shard", strategy="fsdp1-full"),
            helps("DDP", "*broken/fsdp1-no-shard", strategy="ddp"),
            helps("FSDP2", "*broken/fsdp1-no-shard", strategy="fsdp2"),
        ),
    },
)


def images(step, rank, world_size):
    from tiny_models.data import image_text_batch

    return image_text_batch(step, rank, world_size, "dummy")


def in_channels_last():
    import torch

    from tiny_models.gemma3 import gemma3

    return gemma3().to(memory_format=torch.channels_last)


def transposed():
    """The last layer's weight, as a checkpoint of another framework has it: the same numbers in another order."""
    from tiny_models.kit import qwen2

    model = qwen2()
    weight = model.lm_head.weight
    weight.data = weight.data.t().contiguous().t()
    return model


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, next_token_loss, text_batch

    def loss(model, batch):
        return next_token_loss(model(**batch["inputs"]).logits, batch)

    with_images = not remedy.startswith("transposed")
    model = in_channels_last() if with_images else transposed()
    for parameter in model.parameters() if remedy.endswith("contiguous") else ():
        parameter.data = parameter.data.contiguous()
    return Scenario(model, loss, images) if with_images else Scenario(model, causal_lm_loss, text_batch)
