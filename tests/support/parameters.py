"""Models whose parameters are of unusual kinds, for `check`: each function builds one."""

import torch
from torch import nn


class Model(nn.Module):
    """Adds what `more` makes of the input [B, 8], the tokens [B, 3] and the parameter `own` before its two layers."""

    def __init__(self, own, more):
        super().__init__()
        self.own, self.more = own, more
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x, tokens):
        return self.head(torch.tanh(self.first(x + self.more(self.own, x, tokens))))


def loss(model, batch):
    return (model(batch["x"], batch["tokens"]) - 1).pow(2).mean()


def batch(step, rank, world_size):
    seeded = torch.Generator().manual_seed(step * 10 + rank)
    return {"x": torch.randn(2, 8, generator=seeded), "tokens": torch.randint(0, 16, (2, 3), generator=seeded)}


def sparse():
    return Model(nn.Embedding(16, 8, sparse=True), lambda own, x, tokens: own(tokens).mean(1)), loss, batch


def double():
    class Double(nn.Module):
        """All of it is float64, and a constant of its forward pass is as well."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8, dtype=torch.float64)

        def forward(self, x, tokens):
            return self.layer(x.double() @ torch.eye(8, dtype=torch.float64))

    return Double(), loss, batch


def mixed():
    return Model(nn.Linear(8, 8).double(), lambda own, x, tokens: own(x.double()).float()), loss, batch


def complex_numbers():
    own = nn.Parameter(torch.randn(8, dtype=torch.complex64))
    return Model(own, lambda own, x, tokens: torch.fft.ifft(torch.fft.fft(x) * own).real), loss, batch


def scalar():
    return Model(nn.Parameter(torch.tensor(0.5)), lambda own, x, tokens: x * own), loss, batch


def empty():
    return Model(nn.Parameter(torch.empty(0, 8)), lambda own, x, tokens: own.sum()), loss, batch


def not_contiguous():
    return Model(nn.Parameter(torch.randn(8, 8).t()), lambda own, x, tokens: x @ own), loss, batch


def integers():
    own = nn.Parameter(torch.randint(-3, 3, (8, 8), dtype=torch.int8), requires_grad=False)
    return Model(own, lambda own, x, tokens: x @ own.float()), loss, batch


def one_storage():
    whole = torch.randn(16, 8)
    own = nn.ParameterList([whole[:8], whole[8:]])
    return Model(own, lambda own, x, tokens: x @ own[0] + x @ own[1]), loss, batch
