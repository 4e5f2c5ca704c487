"""ZeRO-2 adds up gradients in the order in which they come; if ranks' orders differ, those of different weights."""

from faultline.catalogue import TRIED_HERE, Failure, Variant, fails, helps

RANKS = "https://github.com/deepspeedai/DeepSpeed/issues/2343"
SOME = ("single", "ddp", "zero1", "zero2", "zero3", "fsdp2")

FAILURE = Failure(
    title="Ranks that use modules in different orders mix gradients up under ZeRO-2",
    first_seen="a multi-task model whose ranks run their modules in different orders",
    since="ZeRO-2 has always reduced gradients in the order in which they come",
    until="not fixed: ZeRO-2 takes for granted that all ranks run the same modules in the same order",
    upstream="deepspeedai/DeepSpeed",
    checkpointing=("off",),  # checkpointing has no part in which module comes first
    errors={"ranks-reduce-unlike-lists": r"Detected a disagreement on list contents between rank"},
    also_raises=("lazily-initialized",),  # of a model that was sharded as it was loaded, a child runs first
    variants=(
        Variant("broken"),
        Variant("unlike_sizes", strategies=SOME, text="the same with towers of different sizes"),
        Variant("both_used", strategies=SOME, text="the same where each row uses both towers, the other's by half"),
        Variant("overlap", strategies=SOME, text="the same with `overlap_comm: true`, which ZeRO-1 has off"),
    ),
    claims={
        RANKS: (
            helps("ZeRO-1 instead of ZeRO-2", "broken/zero2", strategy="zero1"),
            fails("ZeRO-2, if ranks get their gradients in different orders", "both_used/zero2"),
        ),
        TRIED_HERE: (
            helps("use the modules in one order, and each of them in every step", remedy="one_order"),
            helps("ZeRO-3 instead of ZeRO-2", "broken/zero2", strategy="zero3"),
            fails("ZeRO-1 with `overlap_comm: true`", "overlap/zero1"),
            helps("`overlap_comm: false`", remedy="no_overlap"),
            helps("`contiguous_gradients: false`", remedy="not_contiguous"),
            helps("`reduce_scatter: false`", remedy="no_reduce_scatter"),
            helps("other bucket sizes", "broken/zero2", strategy="zero2-small"),
        ),
    },
)

OPTIONS = {
    "overlap": {"overlap_comm": True},
    "no_overlap": {"overlap_comm": False},
    "not_contiguous": {"contiguous_gradients": False},
    "no_reduce_scatter": {"reduce_scatter": False},
}
FEATURES = 8


def towers(in_one_order=False, unlike_sizes=False, rest=0.0):
    """A text model with two towers, of which each row uses one; the other takes part times `rest`."""
    import torch
    from torch import nn

    from tiny_models import build
    from tiny_models.kit import qwen2

    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.image = tower(16)
            self.audio = tower(24 if unlike_sizes else 16)
            self.text = qwen2()

        def forward(self, input_ids, features, kinds):
            embedded = self.text.get_input_embeddings()(input_ids)
            order = (0, 1) if in_one_order else dict.fromkeys([*kinds.tolist(), 0, 1])
            for kind in order:
                part = torch.where(kinds == kind, 1.0, rest).to(embedded.dtype)[:, None, None]
                embedded = embedded + part * (self.image, self.audio)[kind](features.to(embedded.dtype))[:, None]
            return self.text(inputs_embeds=embedded)

    def tower(width):
        return nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, 32))

    return build(Towers, 0)


def scenario(remedy, setup):
    import torch

    from tiny_models.kit import Scenario, my_rows, next_token_loss, text_batch

    def loss(model, batch):
        inputs = {name: batch[name] for name in ("input_ids", "features", "kinds")}
        return next_token_loss(model(**inputs).logits, batch)

    def batch(number, rank, world_size):
        """One half of the rows has an image, the other a sound, so that each of two ranks has rows of one kind."""
        features = torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(number))
        kinds = torch.tensor([0, 0, 1, 1])
        return {
            **text_batch(number, rank, world_size),
            "features": my_rows(features, rank, world_size),
            "kinds": my_rows(kinds, rank, world_size),
        }

    options = {"zero_optimization": OPTIONS.get(remedy, {})}
    model = towers(remedy == "one_order", remedy == "unlike_sizes", rest=0.5 if remedy == "both_used" else 0.0)
    return Scenario(model, loss, batch, deepspeed=options)
