"""From a spec to a plain torch model, its loss and its batches, as somebody hands them to `check`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.utils.checkpoint import checkpoint

from lab.programs.parts import Block, Unusual, packed, unpacked
from lab.programs.spec import Spec, parse

TOKENS, VOCABULARY, INPUTS, ROWS = 3, 16, 5, 4
SIGN = INPUTS // 2  # the number of a row that stays where it is when the row is flipped
Batch = dict[str, torch.Tensor]
Program = tuple["Model", Callable[[Any, Batch], torch.Tensor], Callable[[int, int, int], Batch]]


class Model(nn.Module):
    """Numbers x [B, INPUTS] and tokens [B, TOKENS] to y [B, VOCABULARY], through whatever a spec has."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec, width = spec, spec.width
        self.first = nn.Linear(INPUTS, width)
        if spec.sparse or spec.tied == "head":
            self.embed = nn.Embedding(VOCABULARY, width, sparse=spec.sparse)
            nn.init.normal_(self.embed.weight, std=0.3)
        if spec.dtype != "float32" or spec.shape != "usual":
            self.unusual = Unusual(spec)
        if spec.branch != "none":
            self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        if spec.no_grad == "tower":
            self.tower = nn.Linear(INPUTS, width).requires_grad_(False)
        self.spare_runs = False  # until a loop has it run
        if spec.spare:
            with torch.random.fork_rng(devices=[]):  # the other weights are those of a model without it
                self.spare = nn.Linear(width, width)
        if spec.buffer != "none":
            self.register_buffer("offset", torch.linspace(0, 1, width), persistent=spec.buffer == "constant")
        if spec.state in ("count", "average"):
            self.register_buffer("seen", torch.zeros(() if spec.state == "count" else width))
        self._add_blocks([Block(spec) for _ in range(spec.layers)])
        self.head = nn.Linear(width, VOCABULARY)
        if spec.tied == "head":
            self.head.weight = self.embed.weight

    def _add_blocks(self, parts: list[Block]) -> None:
        spec = self.spec
        if spec.tied == "blocks" and len(parts) > 1:
            parts[1].layer.weight = parts[0].layer.weight
        if spec.shared and len(parts) > 1:
            parts[-1] = parts[0]
        if spec.container == "attributes":
            for number, part in enumerate(parts):
                setattr(self, f"block{number}", part)
        elif spec.container == "sequence":
            self.blocks = nn.Sequential(*parts)
        elif spec.container == "dict":
            self.blocks = nn.ModuleDict({f"b{number}": part for number, part in enumerate(parts)})
        elif spec.container == "nested":
            self.blocks = nn.ModuleList(nn.ModuleList([part]) for part in parts)
        else:
            self.blocks = nn.ModuleList(parts)

    def in_order(self) -> list[Block]:
        """The blocks as a forward pass runs them."""
        if self.spec.container == "attributes":
            return [getattr(self, f"block{number}") for number in range(self.spec.layers)]
        if self.spec.container == "dict":
            return list(self.blocks.values())
        return [part[0] if self.spec.container == "nested" else part for part in self.blocks]

    def forward(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return self.score(x, tokens)

    def score(self, x: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """What a forward pass does, by another name."""
        spec = self.spec
        hidden = self.first(x)
        if hasattr(self, "embed"):
            hidden = hidden + self.embed(tokens).mean(1)
        if hasattr(self, "unusual"):
            hidden = self.unusual(hidden)
        if spec.branch != "none":
            hidden = hidden + (self.left if self._goes_left(x) else self.right)(hidden)
        if self.spare_runs:
            hidden = hidden + self.spare(hidden)
        if spec.no_grad == "tower":
            with torch.no_grad():
                features = torch.tanh(self.tower(x))
            hidden = hidden + features
        if spec.buffer != "none":
            hidden = hidden + self.offset
        if spec.state in ("count", "average"):
            with torch.no_grad():
                self.seen.copy_(self.seen + 1 if spec.state == "count" else 0.9 * self.seen + 0.1 * hidden.mean(0))
        if spec.no_grad == "part":
            hidden = hidden.detach()
        value = packed(hidden, spec.output)
        if spec.container == "sequence":
            return self.head(unpacked(self.blocks(value)))
        for number, block in enumerate(self.in_order()):
            for _ in range(1 if number else spec.calls):
                value = self._through(block, value, number)
        return self.head(unpacked(value))

    def _through(self, block: Block, value: Any, number: int) -> Any:
        if self.spec.method == "block":
            return block.run(value)
        if self.spec.checkpoint != "none" and not number:
            return checkpoint(block, value, use_reentrant=self.spec.checkpoint == "reentrant")
        return block(value)

    def _goes_left(self, x: torch.Tensor) -> bool:
        """By the first row, whose sign is the rank's (see `batch`), or by the rank's number; in one process alike."""
        if self.spec.branch == "rank" and distributed.is_initialized():
            return distributed.get_rank() % 2 == 0
        return bool(x[0, SIGN] > 0)


def program(text: str) -> Program:
    """A model, its loss and its batches, of a spec as JSON."""
    spec = parse(text)
    torch.manual_seed(spec.seed)
    model = Model(spec)
    _freeze(model)
    _hook(model)
    return model, lambda model, batch: loss(spec, model, batch), lambda *place: batch(spec, *place)


def _freeze(model: Model) -> None:
    frozen = {"first": model.first.parameters(), "block": model.in_order()[-1].parameters()}
    biases = (parameter for name, parameter in model.named_parameters() if name.endswith("bias"))
    for parameter in biases if model.spec.frozen == "biases" else frozen.get(model.spec.frozen, ()):
        parameter.requires_grad_(False)


def _hook(model: Model) -> None:
    if model.spec.hook == "forward":
        model.first.register_forward_hook(lambda module, args, output: output * 2)
    elif model.spec.hook == "activation":
        model.head.register_forward_pre_hook(_halve_gradient)
    elif model.spec.hook == "parameter":
        model.head.bias.register_hook(lambda gradient: gradient * 0.5)


def _halve_gradient(module: nn.Module, args: tuple[torch.Tensor]) -> None:
    if args[0].requires_grad:
        args[0].register_hook(lambda gradient: gradient * 0.5)


def loss(spec: Spec, model: Any, batch: Batch) -> torch.Tensor:
    """The loss of one rank's rows."""
    x = batch["x"].requires_grad_(spec.twice)
    run = model.score if spec.method == "model" else model
    output = run(x, batch["tokens"])
    total = (output - batch["y"]).pow(2).mean()
    if spec.twice:
        (slope,) = torch.autograd.grad(total, x, create_graph=True)
        total = total + 0.01 * slope.pow(2).sum()
    if spec.no_grad == "target":
        with torch.no_grad():
            wanted = run(x, batch["tokens"]).roll(1, -1)
        total = total + 0.1 * (output - wanted).pow(2).mean()
    if spec.loss == "auxiliary":
        total = total + 0.1 * nn.functional.cross_entropy(output, batch["tokens"][:, 0])
    elif spec.loss == "two passes":
        total = total + 0.5 * (run(x.flip(-1), batch["tokens"]) - batch["y"]).abs().mean()
    elif spec.loss == "weight penalty":
        total = total + 0.1 * getattr(model, "module", model).head.weight.pow(2).sum()
    elif spec.loss == "zero term":
        total = total + 0.0 * output.sum()
    return total


def batch(spec: Spec, step: int, rank: int, world_size: int) -> Batch:
    """A rank's rows of a step; on even ranks x[0, SIGN] is above zero, on odd ones below."""
    drawn = torch.Generator().manual_seed(1000 * spec.seed + 10 * step + rank)
    rows = ROWS // world_size + (0 if spec.rows == "equal" else (1 if rank % 2 else 3))
    x = torch.randn(rows, INPUTS, generator=drawn)
    x[0, SIGN] = (x[0, SIGN].abs() + 0.1) * (-1 if rank % 2 else 1)
    return {
        "x": x,
        "tokens": torch.randint(0, VOCABULARY, (rows, TOKENS), generator=drawn),
        "y": torch.randn(rows, VOCABULARY, generator=drawn),
    }
