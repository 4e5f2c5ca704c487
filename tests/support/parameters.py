"""Models whose parameters are of unusual kinds, for `check`: each function builds one."""

import torch
from torch import nn


class Model(nn.Module):
    """Adds what `more` makes of the input [B, 8], the tokens [B, 3] and its `part` before its two layers."""

    def __init__(self, part, more):
        super().__init__()
        self.part, self.more = part, more
        self.first, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x, tokens):
        return self.head(torch.tanh(self.first(x + self.more(self.part, x, tokens))))


def loss(model, batch):
    return (model(batch["x"], batch["tokens"]) - 1).pow(2).mean()


def batch(step, rank, world_size):
    seeded = torch.Generator().manual_seed(step * 10 + rank)
    return {"x": torch.randn(2, 8, generator=seeded), "tokens": torch.randint(0, 16, (2, 3), generator=seeded)}


def sparse():
    return Model(nn.Embedding(16, 8, sparse=True), lambda part, x, tokens: part(tokens).mean(1)), loss, batch


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
    return Model(nn.Linear(8, 8).double(), lambda part, x, tokens: part(x.double()).float()), loss, batch


def complex_numbers():
    part = nn.Parameter(torch.randn(8, dtype=torch.complex64))
    return Model(part, lambda part, x, tokens: torch.fft.ifft(torch.fft.fft(x) * part).real), loss, batch


def scalar():
    return Model(nn.Parameter(torch.tensor(0.5)), lambda part, x, tokens: x * part), loss, batch


def empty():
    return Model(nn.Parameter(torch.empty(0, 8)), lambda part, x, tokens: part.sum()), loss, batch


def empty_and_idle():
    """In a part that never runs, so that no engine gathers it."""
    model = Model(nn.Parameter(torch.randn(8, 8)), lambda part, x, tokens: x @ part)
    model.idle = nn.Module()
    model.idle.part = nn.Parameter(torch.empty(0, 8))
    return model, loss, batch


def not_contiguous():
    return Model(nn.Parameter(torch.randn(8, 8).t()), lambda part, x, tokens: x @ part), loss, batch


def integers():
    part = nn.Parameter(torch.randint(-3, 3, (8, 8), dtype=torch.int8), requires_grad=False)
    return Model(part, lambda part, x, tokens: x @ part.float()), loss, batch


def one_storage():
    whole = torch.randn(16, 8)
    part = nn.ParameterList([whole[:8], whole[8:]])
    return Model(part, lambda part, x, tokens: x @ part[0] + x @ part[1]), loss, batch
