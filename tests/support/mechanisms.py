"""Models with the mechanism of a known failure, or that change themselves, and near misses of each."""

from functools import partial

import torch
from torch import nn

ROWS = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.hidden(x))

    def hidden(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x))))


def batch(step, rank, world_size):
    return torch.roll(ROWS, step, 0).flatten(0, 1).chunk(world_size)[rank]


def squared(model, rows):
    return model(rows).pow(2).mean()


def built(model=Model, loss=squared):
    return model(), loss, batch


def steep(model, rows):
    rows = rows.clone().requires_grad_(True)
    out = model(rows)
    (slope,) = torch.autograd.grad(out.sum(), rows, create_graph=True)
    return out.pow(2).mean() + (slope.norm(dim=1) - 1).pow(2).mean()


def salient(model, rows):
    """A gradient of the inputs that no second backward pass needs."""
    rows = rows.clone().requires_grad_(True)
    out = model(rows)
    (slope,) = torch.autograd.grad(out.sum(), rows, retain_graph=True)
    return (out.squeeze(1) * slope.norm(dim=1)).mean()


def attacked(model, rows):
    """On rows that a gradient of the inputs has moved."""
    rows = rows.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(model(rows).sum(), rows)
    return squared(model, (rows + slope).detach())


def heavy(model, rows):
    return squared(model, rows) + 0.1 * sum((weight * weight).sum() for weight in model.parameters())


gradient_penalty = partial(built, loss=steep)
adversarial = partial(built, loss=attacked)
saliency = partial(built, loss=salient)
weight_penalty = partial(built, loss=heavy)


class Scoring(Model):
    """Has a weight of its own, which no part of it gathers."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(16))

    def score(self, x):
        return self.head(self.hidden(x) @ self.mix)


method = partial(built, Scoring, lambda model, rows: model.score(rows).pow(2).mean())


class Shrinking(Model):
    """The penalty of a weight while its module runs."""

    def __init__(self):
        super().__init__()
        self.second.forward = self.penalised

    def penalised(self, x):
        return nn.functional.linear(x, self.second.weight, self.second.bias) + 0.1 * self.second.weight.norm()


penalty_inside = partial(built, Shrinking)


class Residual(Model):
    """A skip connection around an activation in place, which changes what is skipped."""

    def __init__(self):
        super().__init__()
        self.second = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 16))

    def hidden(self, x):
        x = self.first(x)
        return x + self.second(x)


residual = partial(built, Residual)


class Warming(Model):
    """Its output grows with its steps, which it counts in an attribute, and in a buffer that no state dict has."""

    calls = 0

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        return super().forward(x) * self.scale * (1 + 0.1 * self.calls + 0.1 * self.seen)


warming = partial(built, Warming)


class Cached(Model):
    mean, calls = None, 0

    def forward(self, x):
        self.calls += 1
        if self.mean is None:
            self.mean = x.mean(0).detach()
        return super().forward(x - self.mean)


cached = partial(built, Cached)


class Target(Model):
    def __init__(self):
        super().__init__()
        self.target = Model().requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            for name in ("first", "second", "head"):
                pairs = zip(getattr(self.target, name).parameters(), getattr(self, name).parameters(), strict=True)
                for old, new in pairs:
                    old.mul_(0.9).add_(new, alpha=0.1)
            aim = self.target(x)
        return super().forward(x) - aim


target = partial(built, Target)


class OnOneRank(Model):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(16, 16)

    def hidden(self, x):
        hidden = super().hidden(x)
        group = torch.distributed.is_initialized()
        return self.extra(hidden) if group and torch.distributed.get_rank() == 0 else hidden


on_one_rank = partial(built, OnOneRank)


class ByTurns(OnOneRank):
    """Some rows need a layer in each step, and in the next step it is another rank's."""

    def hidden(self, x):
        hidden = Model.hidden(self, x)
        return self.extra(hidden) if x[0, 0] > 0 else hidden


def by_turns():
    model = ByTurns()
    ours = torch.where(torch.arange(12)[:, None] < 6, 1.0, -1.0) * ROWS.flatten(0, 1).abs()
    return model, squared, lambda step, rank, world: ours.roll(6 * step, 0).chunk(world)[rank]
