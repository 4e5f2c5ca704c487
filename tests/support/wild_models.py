"""Models as people have them, each with what an answer about it has to get right."""

import random

import numpy as np
import torch
from torch import distributed, nn
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


class Critic(nn.Module):
    """Clips its weights in its forward pass, as a WGAN does, and keeps statistics of each rank's rows."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        with torch.no_grad():
            for parameter in (*self.first.parameters(), *self.second.parameters()):
                parameter.clamp_(-0.1, 0.1)
        return self.second(torch.tanh(self.norm(self.first(x))))


def critic():
    """Runs twice in a step, so that buffers are apart before a weight is wrong."""

    def loss(model, rows):
        with torch.no_grad():
            model(rows)
        return squared(model, rows)

    return Critic(), loss, torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def contrast(image, text, scale):
    labels = torch.arange(len(image))
    scores = scale * nn.functional.normalize(image, dim=-1) @ nn.functional.normalize(text, dim=-1).T
    return (nn.functional.cross_entropy(scores, labels) + nn.functional.cross_entropy(scores.T, labels)) / 2


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 4), nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x):
        return self.image(x), self.text(x.flip(-1)), self.scale


def gathered(tensor):
    """The rows of all ranks, of which those of others have no gradient, as `all_gather` gives them."""
    if not distributed.is_initialized():
        return tensor
    every = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, tensor.detach())
    every[distributed.get_rank()] = tensor
    return torch.cat(every)


def of_gathered_rows():
    """CLIP's loss over gathered features: DDP's mean leaves the towers 1 / world size of their gradient."""

    def loss(model, rows):
        image, text, scale = model(rows)
        return contrast(gathered(image), gathered(text), scale)

    return Towers(), loss, ROWS


class Around(Model):
    """A method that runs the second layer and not the model: it trains where that layer is a unit of its own."""

    def head(self, x):
        return self.second(torch.tanh(self.first(x)))


def around():
    return Around(), lambda model, rows: model.head(rows).pow(2).mean(), ROWS


class Drawing(Model):
    """Draws the second of its experts at random, noise, and a number of Python's, numpy's and its own generator."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.generator, self.own = torch.Generator().manual_seed(5), np.random.default_rng(3)

    def forward(self, x):
        hidden = self.first(x)
        scores = torch.softmax(torch.stack([expert(hidden).sum(-1) for expert in self.experts], -1), -1)
        second = torch.multinomial(scores.detach(), 1)
        hidden = hidden * scores.gather(1, second) + sum(0 * expert(hidden) for expert in self.experts)
        hidden = hidden * (1 + random.random()) * (1 + np.random.rand())
        return self.second(hidden + torch.randn(16, generator=self.generator) * self.own.random())


def drawing():
    return Drawing(), squared, ROWS


def bank():
    """Weighs its output with a mean of those before, in a buffer, where ranks under DDP have that of rank 0's rows."""
    model = Model()
    model.register_buffer("kept", torch.ones(4))

    def weigh(model, args, output):
        weighted = output * model.kept.clone()
        model.kept.lerp_(output.detach().mean(0), 0.5)
        return weighted

    model.register_forward_hook(weigh)
    return model, squared, ROWS


def grad_cache():
    """Large batches in parts, as GradCache trains: features without a graph, then each part again, in a hook."""

    def loss(model, rows):
        parts = rows.chunk(2)
        with torch.no_grad():
            features = torch.cat([model(part) for part in parts])
        features.requires_grad_()

        def again(gradient):
            for part, of_part in zip(parts, gradient.chunk(2), strict=True):
                with torch.enable_grad():
                    (model(part) * of_part).sum().backward()

        features.register_hook(again)
        return features.pow(2).mean()

    return Model(), loss, torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
