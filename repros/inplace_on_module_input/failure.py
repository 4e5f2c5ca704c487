"""A module writes its input in place, and its caller reads that again: ZeRO-3 hides the change from autograd."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, helps, variants

VQVAE = "https://github.com/rosinality/vq-vae-2-pytorch/issues/60"
CLONE = "https://github.com/pytorch/pytorch/issues/61982"
SOME = ("single", "ddp", "zero3", "zero3-small", "fsdp2", "fsdp2-no-reshard")

FAILURE = Failure(
    title="A module that writes its input in place gets wrong gradients under ZeRO-3",
    first_seen="VQ-VAE's residual block, which begins with `ReLU(inplace=True)`",
    since="ZeRO-3 (2021), which gives modules detached inputs; fully_shard (2024)",
    until="not fixed: ZeRO-3 hides the change from autograd, and FSDP2 refuses it",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # a checkpoint's inputs are detached in one process too
    errors={
        # Of FSDP2, and of a leaf module of ZeRO-3.
        "input-in-place": r"Output \d+ of (?:RegisterPost|)Backward(?:Hook|)Function\w* is a view and is being mod"
    },
    variants=(
        Variant("broken", strategies=("single", "ddp", "zero*", "fsdp1*", "fsdp2*")),
        *variants("out_of_place cloned before", strategies=SOME),
        Variant("leaf", strategies=("zero3",)),
    ),
    claims={
        VQVAE: helps("`inplace=False`", remedy="out_of_place"),
        CLONE: helps("`x + body(x.clone())`", remedy="cloned"),
        TRIED_HERE: (
            helps("`set_z3_leaf_modules(model, [Residual])`", "broken/zero3", remedy="leaf"),
            helps("`x = relu(x)`, out of place, and then `x + body(x)`", remedy="before"),
            helps("ZeRO-2 instead of ZeRO-3", "broken/zero3*", strategy="zero2"),
            helps("FSDP1 instead of FSDP2", "broken/fsdp2*", strategy="fsdp1-full"),
            helps("`reshard_after_forward=False`", "broken/fsdp2", strategy="fsdp2-no-reshard"),
        ),
    },
)


def encoder(remedy):
    import torch
    from torch import nn

    from tiny_models import build

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            first = nn.Identity() if remedy == "before" else nn.ReLU(inplace=remedy != "out_of_place")
            self.body = nn.Sequential(first, nn.Linear(16, 32), nn.ReLU(inplace=True), nn.Linear(32, 16))

        def forward(self, x):
            if remedy == "before":
                x = torch.relu(x)
            return x + self.body(x.clone() if remedy == "cloned" else x)

    class Encoder(nn.Module):
        _no_split_modules = ("Residual",)  # the units of FSDP

        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
            self.blocks = nn.Sequential(Residual(), Residual())

        def forward(self, x):
            return self.last(self.blocks(self.first(x.to(self.first.weight.dtype))))

    model = build(Encoder, 0)
    if remedy == "leaf":
        from deepspeed.utils import set_z3_leaf_modules

        set_z3_leaf_modules(model, [Residual])
    return model


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario, my_rows

    def loss(model, rows):
        return model(rows).pow(2).mean()

    def batch(number, rank, world_size):
        return my_rows(torch.randn(4, 8, generator=torch.Generator().manual_seed(number)), rank, world_size)

    return Scenario(encoder(remedy), loss, batch)
