"""What somebody might hand to `check`: models of their own, and mistakes."""

import json
import os
import signal
import sys
import time
from functools import partial

import torch
from torch import distributed, nn
from torch.distributed import all_reduce


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def batch(rows=4):
    return {"x": torch.randn(rows, 8, generator=torch.Generator().manual_seed(0)), "y": torch.arange(rows) % 4}


def built(model=Model, loss=loss, rows=batch):
    return model(), loss, rows()


healthy = partial(built)


def graph():
    """The adjacency of its rows is sparse."""

    def rows(step, rank, world):
        made = torch.Generator().manual_seed(rank)
        adjacency = torch.rand(6, 6, generator=made).round().to_sparse()
        return {"x": torch.randn(6, 8, generator=made), "adjacency": adjacency}

    return Model(), lambda model, rows: torch.sparse.mm(rows["adjacency"], model(rows["x"])).pow(2).mean(), rows


def uneven():
    """The mean of several ranks' losses depends on how many there are: one row of four has fewer labels."""
    rows = batch()
    rows["x"] = rows["x"].unsqueeze(1).repeat(1, 3, 1) + torch.arange(3).view(1, 3, 1)
    rows["y"] = rows["y"].unsqueeze(1).repeat(1, 3)
    rows["y"][0, 1:] = -100
    return Model(), lambda model, rows: nn.functional.cross_entropy(model(rows["x"]).mT, rows["y"]), rows


def from_a_file():
    def rows(step, rank, world):
        with open("rows.json") as file:
            numbers = json.load(file)[rank::world]
        return {"x": torch.tensor([row for row, _ in numbers]), "y": torch.tensor([label for _, label in numbers])}

    return Model(), loss, rows


def weights_in_its_loss():
    weights = nn.Linear(4, 4)
    return Model(), lambda model, rows: nn.functional.cross_entropy(weights(model(rows["x"])), rows["y"]), batch()


def negatives(model, rows):
    """Each row against all others that the rank has."""
    out = model(rows["x"])
    return nn.functional.cross_entropy(out @ out.T * 9, torch.arange(len(out)))


negatives_of_the_batch = partial(built, loss=negatives)


def ranks():
    return distributed.get_world_size() if distributed.is_initialized() else 1


def over_all_rows(model, rows):
    """Divided by the rows of all ranks, whose gradients are averaged once more."""
    count = torch.tensor(float(len(rows["y"])))
    if distributed.is_initialized():
        distributed.all_reduce(count)
    return loss(model, rows) * len(rows["y"]) / count


over_ranks = partial(built, loss=over_all_rows)
over_ranks_and_back = partial(built, loss=lambda model, rows: over_all_rows(model, rows) * ranks())
a_third_of_it = partial(built, loss=lambda model, rows: loss(model, rows) / (3 if ranks() > 1 else 1))
around_the_wrapper = partial(built, loss=lambda model, rows: loss(getattr(model, "module", model), rows))


def unfrozen(model, rows):
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return loss(model, rows)


def unfrozen_late():
    model = Model()
    model.layers.requires_grad_(False)
    return model, unfrozen, batch()


never_frozen = partial(built, loss=unfrozen)


def twice(model, rows):
    loss(model, rows).backward()
    return loss(model, rows)


twice_backward = partial(built, loss=twice)


class Centred(nn.Module):
    """A loss around the centre of all ranks' outputs, as DINO's."""

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 4))

    def forward(self, model, rows):
        out = model(rows["x"])
        target = torch.softmax((out.detach() - self.center) / 0.1, -1)
        mean = out.detach().mean(0, keepdim=True)
        if distributed.is_initialized():
            all_reduce(mean)
            mean /= distributed.get_world_size()
        self.center.mul_(0.5).add_(mean)
        getattr(model, "module", model).centre.copy_(mean)
        return -(target * torch.log_softmax(out, -1)).sum(-1).mean()


def centred():
    """The model has a buffer of all ranks' rows too, as a codebook that they share."""
    model = Model()
    model.register_buffer("centre", torch.zeros(1, 4))
    return model, Centred(), batch()


def asking(model, rows):
    out = model(rows["x"]).mean()
    all_reduce(out.detach().clone())
    return out


unguarded = partial(built, loss=asking)


def asking_alone(model, rows):
    return asking(model, rows) if distributed.is_initialized() and distributed.get_rank() == 0 else loss(model, rows)


of_one_rank = partial(built, loss=asking_alone)


# Models that ranks build or run unlike.


def other_on_each_rank():
    """Ranks that seed by their number: DDP and ZeRO copy the weights of one, FSDP keeps a shard of each."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    return Model(), loss, batch()


def other_buffer_on_each_rank(persistent=True):
    """Weights that are the same, and a projection that every rank draws: DDP copies the one of a rank, nobody else."""
    torch.manual_seed(0)
    model = Model()
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    model.register_buffer("projection", torch.randn(8, 8), persistent)
    model.register_forward_pre_hook(lambda module, args: tuple(x @ module.projection for x in args))
    return model, loss, batch()


other_unsaved_buffer_on_each_rank = partial(other_buffer_on_each_rank, persistent=False)


def numbered_ranks():
    """Each rank holds its number in a buffer that no checkpoint has, and nothing depends on it."""
    model = Model()
    model.register_buffer("rank", torch.tensor(float(os.environ.get("RANK", "0"))), persistent=False)
    return model, loss, batch()


class Doubled(Model):
    """Its second layer does something else as soon as there are several ranks."""

    def forward(self, x):
        x = self.layers[0](x)
        x = self.layers[1](x * 2 if distributed.is_initialized() else x)
        return self.head(self.layers[2](x))


doubled = partial(built, Doubled)


class Particular(nn.Sequential):
    """Works in one process only."""

    def forward(self, x):
        if distributed.is_initialized():
            raise RuntimeError("only for one")
        return super().forward(x)


def fails_on_ranks():
    model = Model()
    model.layers[1] = Particular(*model.layers[1])
    return model, loss, batch()


class ByRank(Model):
    """Uses a layer on rank 0 alone."""

    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(8, 4)

    def forward(self, x):
        out = super().forward(x)
        return out + self.extra(x) if os.environ.get("RANK", "0") == "0" else out


by_rank = partial(built, ByRank)


class Experts(Model):
    """One of two layers runs, as the first number of a rank's rows says."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return super().forward(self.left(x) if x[0, 0] > 0 else self.right(x))


def killed():
    """The second rank dies in its first forward pass."""
    model = Model()

    def die(module, args):
        if distributed.is_initialized() and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    model.register_forward_pre_hook(die)
    return model, loss, batch()


def experts():
    given = batch()
    given["x"][:, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    return Experts(), loss, given


# Models with parts that are frozen, unused, shared, or of a kind of their own.


class Lists(Model):
    """Its layers are lists of parts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8)]) for _ in range(3))

    def forward(self, x):
        for layer, norm in self.layers:
            x = norm(layer(x)).tanh()
        return self.head(x)


nested_lists = partial(built, Lists)


def nested_sequences():
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*parts, nn.Linear(8, 4)), loss, batch()


def one_number():
    """A parameter of one number, which FSDP2 hands back with a stride of its own."""
    model = Model()
    model.head = nn.Linear(8, 1)
    return model, lambda model, batch: (model(batch["x"]) - batch["y"].float()[:, None]).square().mean(), batch()


def unused():
    model = Model()
    model.spare = nn.Linear(8, 8)
    return model, loss, batch()


class TiedBlocks(nn.Module):
    """Its head and its embedding share a weight and are of the class of its blocks."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 8)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


tied_blocks = partial(built, TiedBlocks)


def one_rank_raises_within_tied():
    """Of a model with tied weights, one rank raises in a forward pass, and the other goes on."""
    model, loss, rows = tied_blocks()

    def fail(module, args):
        if distributed.is_initialized() and distributed.get_rank() == 1:
            raise ValueError("one rank's own")

    model.head.register_forward_pre_hook(fail)
    return model, loss, rows


class Repeated(Model):
    """All its blocks are one by their weights."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer[0].weight, layer[0].bias = self.layers[0][0].weight, self.layers[0][0].bias


class Dropping(nn.Module):
    """Drops in every way that torch has."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)
        self.dropout = nn.Dropout2d(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.encoder(x.unflatten(1, (1, 8)))
        x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
        x = self.dropout(self.recurrent(x)[0].unsqueeze(-1)).squeeze(-1)
        return self.head(nn.functional.dropout(x, 0.5, self.training).flatten(1))


dropping = partial(built, Dropping)


def in_bf16():
    return Model().bfloat16(), loss, {"x": batch()["x"].bfloat16(), "y": batch()["y"]}


def normalised():
    model = Model()
    model.layers.append(nn.BatchNorm1d(8))
    return model, loss, batch()


def normalised_as_before():
    """Its BatchNorm is frozen, and normalises by the statistics that it came with."""
    back = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)).requires_grad_(False).eval()
    return nn.Sequential(back, nn.Linear(6, 4)), loss, batch()


def compiled():
    return torch.compile(Model()), loss, batch()


def compiled_in_part():
    model = Model()
    model.head = torch.compile(model.head)
    return model, loss, batch()


class Alternating(Model):
    """Trains its head in every other step, and the rest in the steps between, as a GAN does."""

    steps = 0

    def forward(self, x):
        self.steps += 1
        self.head.requires_grad_(self.steps % 2 == 1)
        self.layers.requires_grad_(self.steps % 2 == 0)
        return super().forward(x)


alternating = partial(built, Alternating)


class Clipped(Model):
    """Clips its weights before it uses them, as a WGAN does."""

    def forward(self, x):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.clamp_(-0.2, 0.2)
        return super().forward(x)


clipped = partial(built, Clipped)


class Temperature(Model):
    """Reads a weight of another module, and has a number that is trained."""

    def __init__(self):
        super().__init__()
        self.number = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return super().forward(x) * self.number.exp() + self.head.weight.mean()


temperature = partial(built, Temperature)
of_the_wrapper = partial(built, Temperature, lambda model, rows: loss(model, rows) + model.number)


# Models that checkpoint.


def checkpoints_by_itself():
    model = Model()
    forward = model.layers[1].forward
    model.layers[1].forward = lambda x: torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=False)
    return model, loss, batch()


class CutOff(nn.Module):
    """Checkpoints its blocks by hand, behind an embedding that is frozen."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 8).requires_grad_(False), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
        return self.head(x)


cut_off = partial(built, CutOff, rows=lambda: {"x": torch.arange(4), "y": torch.arange(4) % 3})


# Mistakes.

no_graph = partial(built, loss=lambda model, batch: loss(model, batch).detach())


def exits():
    sys.exit(3)


def dies():
    os._exit(5)


def fails():
    return help_me(None)


def help_me(value):
    return value.shape


def waits():
    time.sleep(3600)


def unseeded():
    """Draws what no seed decides."""
    model = Model()
    model.layers[0].register_forward_hook(lambda module, args, output: output + 0.5 * os.urandom(1)[0] / 256)
    return model, loss, batch()
