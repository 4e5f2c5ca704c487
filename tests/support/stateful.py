"""Models that change what they keep in their forward pass, and faults of what they keep."""

import dataclasses
from functools import partial

import torch
from torch import nn

from faultline.ranks.run import Injection


class Model(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.up, self.between, self.down = nn.Linear(6, 8), between, nn.Linear(8, 3)
        self.register_buffer("constant", torch.tensor([1.0, float("-inf")]))

    def forward(self, x):
        return self.down(torch.tanh(self.between(self.up(x))))


class Counter(nn.Module):
    """Counts its calls in a buffer and in an attribute, and both are part of what it computes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("last", torch.zeros(()), persistent=False)
        self.layer, self.calls, self.seen = nn.Linear(8, 8), 0, []

    def forward(self, x):
        self.count += 1
        self.calls += 1
        self.seen.append(x.detach().mean())
        self.last = self.seen[-1]
        return self.layer(x) * (1 + 0.1 * self.calls) + 0.1 * self.count + 0.01 * len(self.seen)


class Average(nn.Linear):
    """Keeps a moving average of its weights, in a buffer or in a frozen parameter, and computes with it."""

    def __init__(self, frozen):
        super().__init__(8, 8)
        if frozen:
            self.average = nn.Parameter(torch.zeros(8), requires_grad=False)
        else:
            self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        with torch.no_grad():
            self.average.mul_(0.9).add_(0.1 * self.bias)
        return super().forward(x) + self.average


class Statistic(nn.Module):
    """Keeps a moving average of what it is given, and subtracts it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return self.layer(x - self.mean)


def built(between, *given):
    generator = torch.Generator().manual_seed(5)
    batch = {"x": torch.randn(4, 6, generator=generator), "y": torch.randn(4, 3, generator=generator)}
    return Model(between(*given)), lambda model, rows: ((model(rows["x"]) - rows["y"]) ** 2).mean(), batch


counter = partial(built, Counter)
average = partial(built, Average, False)
frozen_average = partial(built, Average, True)
spectral = partial(built, lambda: nn.utils.spectral_norm(nn.Linear(8, 8)))
group_norm = partial(built, nn.GroupNorm, 2, 8)
batch_norm = partial(built, nn.BatchNorm1d, 8)
statistic = partial(built, Statistic)


def two_passes():
    """Of the same rows, one of them turned round: DDP broadcasts the statistics before the second as well."""
    model, loss, batch = batch_norm()
    return model, lambda model, rows: loss(model, rows) + loss(model, {**rows, "x": rows["x"].flip(-1)}), batch


def _after_each_step(change):
    """The wrapped model, of which `change(model, rank)` has its way after each step of the optimizer."""

    def wrapped(wrapped, setup):
        def step():
            wrapped.step()
            change(getattr(wrapped.model, "module", wrapped.model), setup.rank)

        return dataclasses.replace(wrapped, step=step)

    return Injection(wrapped=wrapped)


def _kept(model, name):
    return dict(model.named_buffers())[f"between.{name}"]


def _one_rank_counts_on(model, rank):
    _kept(model, "count").add_(rank)


def _last_bit(model, rank):
    if rank:
        _kept(model, "average").mul_(1 + 2.0**-20)


def _frozen_moves(model, rank):
    if rank:
        dict(model.named_parameters())["between.average"].data.add_(0.01)


def _forward_again(model, rank):
    with torch.no_grad():
        model.between(torch.ones(2, 8))


def _twice(model):
    """Have the model's statistics move twice in each forward pass, as where a layer is recomputed."""
    forward = model.between.forward
    model.between.forward = lambda x: (forward(x), forward(x))[1]


ONE_RANK_COUNTS_ON = _after_each_step(_one_rank_counts_on)
LAST_BIT = _after_each_step(_last_bit)
FROZEN_MOVES = _after_each_step(_frozen_moves)
FORWARD_AGAIN = _after_each_step(_forward_again)
TWICE = Injection(model=_twice)
NOT_BROADCAST = Injection(
    wrapped=lambda wrapped, setup: (setattr(wrapped.model, "forward_sync_buffers", False), wrapped)[1]
)
