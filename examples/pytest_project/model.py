"""A small model, and two ways to compute its loss: one is right, and the other is a known mistake."""

import torch
from torch import nn


def model():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch():
    """Four rows, which two ranks share."""
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    return {"x": rows, "y": torch.arange(4)}


def loss(model, batch):
    """Calls what it is given: the model with the wrapper of the strategy around it."""
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def loss_around_the_wrapper(model, batch):
    """Calls the model inside of the wrapper, which then never averages the gradients of the ranks."""
    return loss(getattr(model, "module", model), batch)
