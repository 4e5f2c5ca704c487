"""What somebody might hand to `check`: models of their own, and mistakes."""

import json
import os
import sys
import time

import torch
from torch import distributed, nn


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


def healthy():
    return Model(), loss, batch()


def uneven():
    """The mean of several ranks' losses depends on how many there are: one row of four has fewer labels."""
    rows = batch()
    rows["x"] = rows["x"].unsqueeze(1).repeat(1, 3, 1) + torch.arange(3).view(1, 3, 1)
    rows["y"] = rows["y"].unsqueeze(1).repeat(1, 3)
    rows["y"][0, 1:] = -100
    return Model(), lambda model, rows: nn.functional.cross_entropy(model(rows["x"]).mT, rows["y"]), rows


def other_rows():
    """A function that gives four ranks other rows than two."""
    return Model(), loss, lambda step, rank, world_size: {name: rows[rank:][:2] for name, rows in batch(5).items()}


def other_on_each_rank():
    """Ranks that seed by their number: DDP and ZeRO copy the weights of one, FSDP keeps a shard of each."""
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    return Model(), loss, batch()


def other_buffer_on_each_rank():
    """Weights that are the same, and a projection that every rank draws: DDP copies the one of a rank, nobody else."""
    torch.manual_seed(0)
    model = Model()
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    model.register_buffer("projection", torch.randn(8, 8))
    model.register_forward_pre_hook(lambda module, args: tuple(x @ module.projection for x in args))
    return model, loss, batch()


def other_unsaved_buffer_on_each_rank():
    """The same with a buffer that no checkpoint has."""
    model, _, rows = other_buffer_on_each_rank()
    model._non_persistent_buffers_set.add("projection")
    return model, loss, rows


class Warming(nn.Module):
    """A loss that counts its calls, and is scaled by them: on each rank it counts once in a step."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, model, rows):
        self.calls += 1
        return loss(model, rows) * self.calls


def counts_in_its_loss():
    return Model(), Warming(), batch()


def counts_in_a_closure():
    calls, number = [], 0

    def scaled(model, rows):
        nonlocal number
        calls.append(1)
        number += 1
        return loss(model, rows) * (len(calls) + number)

    return Model(), scaled, batch()


def weights_in_its_loss():
    weights = nn.Linear(4, 4)
    return Model(), lambda model, rows: nn.functional.cross_entropy(weights(model(rows["x"])), rows["y"]), batch()


def negatives_of_the_batch():
    """Each row against all others that the rank has."""

    def contrast(model, rows):
        out = model(rows["x"])
        return nn.functional.cross_entropy(out @ out.T * 9, torch.arange(len(out)))

    return Model(), contrast, batch()


def numbered_ranks():
    """Each rank holds its number in a buffer that no checkpoint has, and nothing depends on it."""
    model = Model()
    model.register_buffer("rank", torch.tensor(float(os.environ.get("RANK", "0"))), persistent=False)
    return model, loss, batch()


class Lists(Model):
    """Its layers are lists of parts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList([nn.Linear(8, 8), nn.LayerNorm(8)]) for _ in range(3))

    def forward(self, x):
        for layer, norm in self.layers:
            x = norm(layer(x)).tanh()
        return self.head(x)


def nested_lists():
    return Lists(), loss, batch()


def nested_sequences():
    parts = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*parts, nn.Linear(8, 4)), loss, batch()


def checkpoints_by_itself():
    model = Model()
    forward = model.layers[1].forward
    model.layers[1].forward = lambda x: torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=False)
    return model, loss, batch()


def checkpoints_by_itself_and_mixes():
    """Most engines refuse two types of parameters before the first forward pass."""
    model, loss, rows = checkpoints_by_itself()
    model.scale = nn.Parameter(torch.ones(8, dtype=torch.float64))
    model.register_forward_pre_hook(lambda module, args: args[0] * module.scale.float())
    return model, loss, rows


def checkpoints_by_itself_and_waits():
    """Each rank waits for the other one before it comes to its first backward pass."""
    model, loss, rows = checkpoints_by_itself()

    def wait(module, args):
        if distributed.is_initialized():
            distributed.recv(torch.zeros(1), src=1 - distributed.get_rank())

    model.register_forward_pre_hook(wait)
    return model, loss, rows


def one_rank_raises_within_tied():
    """Of a model with tied weights, one rank raises in a forward pass, and the other goes on."""
    model, loss, rows = tied_blocks()

    def fail(module, args):
        if distributed.is_initialized() and distributed.get_rank() == 1:
            raise ValueError("one rank's own")

    model.head.register_forward_pre_hook(fail)
    return model, loss, rows


class Checkpointed(nn.Module):
    """Checkpoints its blocks by hand, behind an embedding that is frozen."""

    def __init__(self, use_reentrant=True):
        super().__init__()
        self.embed, self.head = nn.Embedding(4, 8).requires_grad_(False), nn.Linear(8, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


def checkpointed(model):
    return model, loss, {"x": torch.arange(4), "y": torch.arange(4) % 3}


def cut_off():
    return checkpointed(Checkpointed())


def cut_off_and_unused():
    model = Checkpointed()
    model.spare = nn.Linear(8, 8)
    return checkpointed(model)


def not_reentrant():
    return checkpointed(Checkpointed(use_reentrant=False))


def trained_embedding():
    model = Checkpointed()
    model.embed.requires_grad_(True)
    return checkpointed(model)


def frozen_blocks():
    model = Checkpointed()
    model.blocks.requires_grad_(False)
    return checkpointed(model)


def unused():
    model = Model()
    model.spare = nn.Linear(8, 8)
    return model, loss, batch()


def one_number():
    """A parameter of one number, which FSDP2 hands back with a stride of its own."""
    model = Model()
    model.head = nn.Linear(8, 1)
    return model, lambda model, batch: (model(batch["x"]) - batch["y"].float()[:, None]).square().mean(), batch()


class Doubled(Model):
    """Its second layer does something else as soon as there are several ranks."""

    def forward(self, x):
        x = self.layers[0](x)
        x = self.layers[1](x * 2 if distributed.is_initialized() else x)
        return self.head(self.layers[2](x))


def doubled():
    return Doubled(), loss, batch()


class Particular(nn.Sequential):
    """Works in one process only."""

    def forward(self, x):
        if distributed.is_initialized():
            raise RuntimeError("only for one")
        return super().forward(x)


class Impossible(Exception):
    """A user's own, of the same name as one of the suite's."""


class Refusing(nn.Sequential):
    def forward(self, x):
        if distributed.is_initialized():
            raise Impossible("such shapes")
        return super().forward(x)


def impossible():
    model = Model()
    model.layers[1] = Refusing(*model.layers[1])
    return model, loss, batch()


def fails_on_ranks():
    model = Model()
    model.layers[1] = Particular(*model.layers[1])
    return model, loss, batch()


class Tied(Model):
    """Its head shares the first layer's weight, until there are several ranks."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)
        self.head.weight = self.layers[0][0].weight

    def forward(self, x):
        if distributed.is_initialized() and self.head.weight is self.layers[0][0].weight:
            self.head.weight = nn.Parameter(self.head.weight.detach().clone())
        return super().forward(x)


def tied():
    return Tied(), loss, batch()


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


def tied_blocks():
    return TiedBlocks(), loss, batch()


class Repeated(Model):
    """All its blocks are one by their weights."""

    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer[0].weight, layer[0].bias = self.layers[0][0].weight, self.layers[0][0].bias


def repeated():
    return Repeated(), loss, batch()


class Experts(Model):
    """One of two layers runs, as the first number of a rank's rows says."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return super().forward(self.left(x) if x[0, 0] > 0 else self.right(x))


def experts():
    given = batch()
    given["x"][:, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    return Experts(), loss, given


def per_image():
    from faultline.scenario import next_token_loss
    from tiny_models.data import sliced_image_batch
    from tiny_models.per_image_vision import per_image_vision_model

    def loss(model, batch):
        slices = batch["slices"]
        calls = slices.shape[0] * slices.shape[1]
        return next_token_loss(model(batch["input_ids"], slices, calls), batch)

    return per_image_vision_model(), loss, lambda step, rank, world: sliced_image_batch(step, rank, world, 4, 2)


def without_a_loss():
    return Model()


def no_model():
    return 7


def three_rows():
    return Model(), loss, batch(3)


def no_graph():
    return Model(), lambda model, batch: loss(model, batch).detach(), batch()


def exits():
    sys.exit(3)


def dies():
    os._exit(5)


def fails():
    return help_me(None)


def help_me(value):
    return value.shape


def spawns():
    torch.multiprocessing.spawn(print, nprocs=2)


def unseeded(rate=0.5):
    """Draws what no seed decides."""
    model = Model()
    model.layers[0].register_forward_hook(lambda module, args, output: output + rate * os.urandom(1)[0] / 256)
    return model, loss, batch()


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


def dropping():
    return Dropping(), loss, batch()


def no_tensors():
    return Model(), loss, {"x": [[0.0] * 8] * 4, "y": [0, 1, 2, 3]}


def adapted(model, *targets):
    """A frozen model with an adapter whose B is not zero, so that A has a gradient at once."""
    from peft import LoraConfig, get_peft_model

    results = get_peft_model(model, LoraConfig(r=2, target_modules=list(targets)))
    for name, parameter in results.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)
    return results


def adapters_of_an_unused_tower():
    """Gemma3 with adapters on its language model and on its vision tower, trained on text."""
    from tiny_models.gemma3 import gemma3

    ids = torch.arange(32, 64).reshape(4, 8)
    text = {"input_ids": ids, "labels": ids, "token_type_ids": torch.zeros_like(ids)}
    return adapted(gemma3(), "q_proj"), lambda model, batch: model(**batch).loss, text


def adapters_behind_inputs_without_a_graph():
    """Qwen2 on embeddings that were made beforehand: reentrant checkpointing finds nothing to run backward to."""
    from tiny_models.qwen2 import qwen2

    inputs = torch.randn(4, 8, 32, generator=torch.Generator().manual_seed(0))
    rows = {"inputs_embeds": inputs, "labels": torch.arange(32, 64).reshape(4, 8)}
    return adapted(qwen2(), "q_proj", "lm_head"), lambda model, batch: model(**batch).loss, rows


def from_a_file():
    def rows(step, rank, world):
        with open("rows.json") as file:
            numbers = json.load(file)[rank::world]
        return {"x": torch.tensor([row for row, _ in numbers]), "y": torch.tensor([label for _, label in numbers])}

    return Model(), loss, rows


def in_bf16():
    return Model().bfloat16(), loss, {"x": batch()["x"].bfloat16(), "y": batch()["y"]}


def no_function():
    return Model(), 0.5, batch()


def no_number():
    return Model(), lambda model, batch: loss(model, batch) * float("nan"), batch()


def zero_head():
    """Its first loss is the same for all rows, as that of DPO beside a copy of the model is."""
    model = Model()
    nn.init.zeros_(model.head.weight)
    nn.init.zeros_(model.head.bias)
    return model, loss, batch()


def normalised_as_before():
    """Its BatchNorm is frozen, and normalises by the statistics that it came with."""
    back = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)).requires_grad_(False).eval()
    return (
        nn.Sequential(back, nn.Linear(6, 4)),
        lambda model, rows: nn.functional.cross_entropy(model(rows["x"]), rows["y"]),
        batch(),
    )


def wrong_shapes():
    return nn.Sequential(nn.Linear(8, 3), nn.Linear(7, 4)), loss, batch()


def equal_rows():
    return Model(), loss, {"x": torch.ones(4, 8), "y": torch.zeros(4, dtype=torch.long)}


def compiled():
    return torch.compile(Model()), loss, batch()


def compiled_in_part():
    model = Model()
    model.head = torch.compile(model.head)
    return model, loss, batch()


def several_lines():
    raise ValueError("the first line\nthe second line")


def waits():
    time.sleep(3600)


class Alternating(Model):
    """Trains its head in every other step, and the rest in the steps between, as a GAN does."""

    steps = 0

    def forward(self, x):
        self.steps += 1
        self.head.requires_grad_(self.steps % 2 == 1)
        self.layers.requires_grad_(self.steps % 2 == 0)
        return super().forward(x)


def alternating():
    return Alternating(), loss, batch()


class Clipped(Model):
    """Clips its weights before it uses them, as a WGAN does."""

    def forward(self, x):
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.clamp_(-0.2, 0.2)
        return super().forward(x)


def clipped():
    return Clipped(), loss, batch()


def twice_backward():
    def twice(model, batch):
        loss(model, batch).backward()
        return loss(model, batch)

    return Model(), twice, batch()


class ByRank(Model):
    """Uses a layer on rank 0 alone, or on the other one."""

    def __init__(self, rank="0"):
        super().__init__()
        self.extra, self.rank = nn.Linear(8, 4), rank

    def forward(self, x):
        out = super().forward(x)
        return out + self.extra(x) if os.environ.get("RANK", self.rank) == self.rank else out


def by_rank():
    return ByRank(), loss, batch()


class Temperature(Model):
    """Reads a weight of another module, and has a number that is trained."""

    def __init__(self):
        super().__init__()
        self.number = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return super().forward(x) * self.number.exp() + self.head.weight.mean()


def temperature():
    return Temperature(), loss, batch()


def of_the_wrapper():
    return Temperature(), lambda model, rows: loss(model, rows) + model.number, batch()
