"""The modules that models made from a spec consist of."""

import dataclasses
from typing import Any

import torch
from torch import nn

from lab.programs.spec import Spec


@dataclasses.dataclass
class Output:
    """What a block returns that returns a dataclass."""

    hidden: torch.Tensor


def packed(hidden: torch.Tensor, kind: str) -> Any:
    """A hidden state [B, W] as a block returns it."""
    makers = {"tuple": lambda x: (x, None), "dict": lambda x: {"hidden": x}, "dataclass": Output}
    return makers[kind](hidden) if kind in makers else hidden


def unpacked(output: Any) -> torch.Tensor:
    """The hidden state [B, W] of what a block returned."""
    if isinstance(output, Output):
        return output.hidden
    if isinstance(output, dict):
        return output["hidden"]
    return output[0] if isinstance(output, tuple) else output


class Half(torch.autograd.Function):
    """Half of its input, as an autograd function whose backward pass is written by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.5


class Attention(nn.Module):
    """Attention of one head, of the numbers of a row [B, W] in two halves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = torch.stack([x, x.roll(1, -1)], dim=1)
        weights = (self.query(tokens) @ self.key(tokens).transpose(1, 2)).softmax(-1)
        return (weights @ tokens).mean(1)


class Convolution(nn.Module):
    """A convolution over the numbers of a row [B, W]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.unsqueeze(1)).mean(1)


class Experts(nn.Module):
    """Two experts, of which each row [B, W] takes a mixture."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        return sum(shares[:, number, None] * expert(x) for number, expert in enumerate(self.experts))


BEFORE = {"norm": nn.LayerNorm, "attention": Attention, "convolution": Convolution, "experts": Experts}


class Block(nn.Module):
    """A part that a spec names, and a linear layer behind it: [B, W] to [B, W], packed as the spec says."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.before = BEFORE[spec.block](spec.width) if spec.block in BEFORE else nn.Identity()
        self.layer = nn.Linear(spec.width, spec.width)
        self.after = nn.BatchNorm1d(spec.width) if spec.state == "batchnorm" else nn.Identity()

    def run(self, x: Any) -> Any:
        """What a forward pass does, by another name."""
        x = unpacked(x)
        hidden = torch.tanh(self.after(self.layer(self.before(x)))) + x
        if self.spec.function:
            hidden = Half.apply(hidden)
        if self.spec.inplace:
            hidden = hidden.add_(1.0)
        return packed(hidden, self.spec.output)

    def forward(self, x: Any) -> Any:
        return self.run(x)


class Unusual(nn.Module):
    """Adds to a row [B, W] what a parameter of an unusual type or shape makes of it."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec, width = spec, spec.width
        if spec.dtype in ("float64", "bfloat16"):
            dtype = torch.float64 if spec.dtype == "float64" else torch.bfloat16
            self.kind = nn.Linear(width, width, dtype=dtype)
        elif spec.dtype == "mixed":
            self.kind = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width, dtype=torch.float64)])
        elif spec.dtype == "complex":
            self.kind = nn.Parameter(torch.randn(width, dtype=torch.complex64))
        elif spec.dtype == "integer":
            self.kind = nn.Parameter(torch.randint(-3, 3, (width, width), dtype=torch.int8), requires_grad=False)
        if spec.shape == "scalar":
            self.odd = nn.Parameter(torch.tensor(0.5))
        elif spec.shape == "one":
            self.odd = nn.Parameter(torch.tensor([0.5]))
        elif spec.shape == "empty":
            self.odd = nn.Parameter(torch.empty(0, width))
        elif spec.shape == "transposed":
            self.odd = nn.Parameter(torch.randn(width, width).t())
        elif spec.shape == "storage":
            whole = torch.randn(2 * width, width)
            self.odd = nn.ParameterList([whole[:width], whole[width:]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more, dtype, shape = torch.zeros_like(x), self.spec.dtype, self.spec.shape
        if dtype in ("float64", "bfloat16"):
            more = more + self.kind(x.to(self.kind.weight.dtype)).to(x.dtype)
        elif dtype == "mixed":
            more = more + self.kind[0](x) + self.kind[1](x.double()).to(x.dtype)
        elif dtype == "complex":
            more = more + torch.fft.ifft(torch.fft.fft(x) * self.kind).real
        elif dtype == "integer":
            more = more + 0.1 * (x @ self.kind.to(x.dtype))
        if shape in ("scalar", "one"):
            more = more + x * self.odd
        elif shape == "empty":
            more = more + self.odd.sum()
        elif shape == "transposed":
            more = more + 0.1 * (x @ self.odd)
        elif shape == "storage":
            more = more + 0.1 * (x @ self.odd[0] + x @ self.odd[1])
        return x + more


class TiedByHand(nn.Module):
    """A linear layer that takes its weight from another module in each forward pass, and has only a bias itself."""

    def __init__(self, other: nn.Module, bias: nn.Parameter) -> None:
        super().__init__()
        self.bias = bias
        self._other = [other]  # in a list it is no part of this module

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(value, self._other[0].weight, self.bias)
