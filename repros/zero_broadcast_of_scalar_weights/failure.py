"""`deepspeed.initialize` broadcasts weights as bytes, and a weight without a dimension has no such view."""

from faultline.catalogue import TRIED_HERE, Failure, helps, variants

SOME = ("single", "ddp", "zero[0-3]", "zero3-hpz", "fsdp1-full", "fsdp1-hybrid", "fsdp2", "fsdp2-hsdp")

FAILURE = Failure(
    title="DeepSpeed can't initialize models with a scalar weight, such as CLIP's",
    first_seen="`faultline explore`'s findings, tried with CLIP; no report was found",
    since="deepspeed 0.19.8 (`faultline bisect --introduced`: 0.19.7 trains)",
    until="not fixed: `_broadcast_model` views each weight as bytes",
    upstream="deepspeedai/DeepSpeed",
    errors={
        "no-dimension": r"self\.dim\(\) cannot be 0 to view \w+ as Byte",
        # As FSDP words what it refuses.
        "scalar-parameter": r"doesn't support scalar parameters",
    },
    checkpointing=("off",),
    variants=(*variants("broken one_dimension", strategies=SOME),),
    claims={
        TRIED_HERE: (
            helps("a weight of shape `(1,)` in its place", "*broken/zero*", remedy="one_dimension"),
            helps("DDP", "*broken/zero*", strategy="ddp"),
            helps("FSDP1", "*broken/zero*", strategy="fsdp1-full"),
            helps("FSDP2", "*broken/zero*", strategy="fsdp2"),
        ),
    },
)


def clip():
    """A CLIP with a layer in each tower. Its loss is scaled by `logit_scale`, a tensor of no dimension."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = tower | {"vocab_size": 96, "max_position_embeddings": 64, "eos_token_id": 2}
    vision = tower | {"image_size": 8, "patch_size": 4}
    torch.manual_seed(0)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16, logit_scale_init_value=1.0))


def batch(step, rank, world_size):
    """A rank's rows of the four of a step, whose pairs are among themselves."""
    import torch

    from tiny_models.kit import my_rows

    numbers = torch.Generator().manual_seed(step)
    pixels, tokens = torch.randn(4, 3, 8, 8, generator=numbers), torch.randint(3, 96, (4, 6), generator=numbers)
    return {"pixel_values": my_rows(pixels, rank, world_size), "input_ids": my_rows(tokens, rank, world_size)}


def loss(model, batch):
    """How unlike a text and its own image are: of each row alone, so that ranks can share rows."""
    logits = model(**batch).logits_per_text
    return -logits.diagonal().mean()


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario

    model = clip()
    if remedy == "one_dimension":
        model.logit_scale = torch.nn.Parameter(model.logit_scale.detach().reshape(1))
    return Scenario(model, loss, batch)
