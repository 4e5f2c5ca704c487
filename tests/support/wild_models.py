"""Models as people have them, each with what an answer about it has to get right."""

import torch
from torch import nn
from transformers.utils import ModelOutput

ROWS = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def squared(model, rows):
    return model(rows).pow(2).mean()


class ActorCritic(nn.Module):
    """Has no forward pass of its own, as CleanRL's agents have none."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(8, 4), nn.Linear(8, 1)

    def get_action_and_value(self, x):
        return self.actor(x), self.critic(x)


def actor_critic():
    def loss(model, rows):
        actions, values = model.get_action_and_value(rows)
        return actions.pow(2).mean() + values.pow(2).mean()

    return ActorCritic(), loss, ROWS


def synchronised():
    return nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))), squared, ROWS


class Frozen(dict):
    """A dictionary that refuses any change."""

    def refuse(self, *args, **kwargs):
        raise TypeError("frozen")

    update = pop = clear = setdefault = __setitem__ = __delitem__ = refuse


def configured():
    """Has a config that can't be changed, by one's own class and by a class of a model library, and one that can."""
    model = Model()
    model.config_of_ours, model.config_of_a_library = Frozen(width=8), ModelOutput(width=8)
    model.counts = {"calls": 0}

    def count(module, args):
        module.counts["calls"] += 1

    model.register_forward_pre_hook(count)
    return model, lambda model, rows: squared(model, rows) * getattr(model, "module", model).counts["calls"], ROWS
