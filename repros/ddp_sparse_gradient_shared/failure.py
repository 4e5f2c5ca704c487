"""DDP divides a sparse gradient in place while a dense embedding, whose output was added, still has to read it."""

from faultline.catalogue import TRIED_HERE, Failure, helps, variants

EVERY = ("single", "ddp*")  # ZeRO and FSDP take no sparse gradients

FAILURE = Failure(
    title="DDP divides a sparse gradient that another embedding's gradient shares",
    first_seen="a model with a sparse embedding beside its own, checked with Faultline; no report was found",
    since="in torch 2.13.0 (where it was seen)",
    until="not fixed",
    upstream="pytorch/pytorch",
    checkpointing=("off",),  # which has no part in what an embedding's output is added to
    variants=variants("broken dense copied first bucket_view", strategies=EVERY),
    claims={
        TRIED_HERE: (
            helps("`sparse=False`", remedy="dense"),
            helps("a copy of what the sparse embedding gives, such as `side(tokens) * 1.0`", remedy="copied"),
            helps("call the sparse embedding before the dense one", remedy="first"),
            helps("`gradient_as_bucket_view=True`", remedy="bucket_view"),
            helps("`find_unused_parameters=True`", "broken/ddp", strategy="ddp-find-unused"),
            helps("`static_graph=True`", "broken/ddp", strategy="ddp-static-graph"),
        )
    },
)


def scenario(remedy, setup):
    import torch
    from torch import nn

    from tiny_models.kit import Scenario, text_batch

    class Model(nn.Module):
        """Tokens, and a large table of something else about them, such as users or n-grams."""

        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(64, 16)
            self.side = nn.Embedding(64, 16, sparse=remedy != "dense")
            self.layer = nn.Linear(16, 16)
            self.head = nn.Linear(16, 64)

        def forward(self, ids):
            if remedy == "first":  # its backward pass is the last then
                beside = self.side(ids.roll(1, -1))
                return self.head(torch.tanh(self.layer(self.tokens(ids) + beside)))
            hidden, beside = self.tokens(ids), self.side(ids.roll(1, -1))
            if remedy == "copied":
                beside = beside * 1.0
            return self.head(torch.tanh(self.layer(hidden + beside)))

    def loss(model, batch):
        ids = batch["input_ids"] % 64
        scores = model(ids).flatten(0, 1)
        terms = nn.functional.cross_entropy(scores, ids.roll(-1, -1).flatten(), reduction="none")
        return (terms * batch["attention_mask"].flatten()).sum() * batch["scale"]

    torch.manual_seed(0)
    keywords = {"ddp": {"gradient_as_bucket_view": True}} if remedy == "bucket_view" else {}
    return Scenario(Model(), loss, text_batch, keywords=keywords)
