"""A run in a few numbers, by which it can be held against others without its tensors."""

import zlib

import torch

from faultline.ranks.compare import Tensors, Trace, movement
from faultline.ranks.report import Measure, Sketch


def of(trace: Trace) -> Sketch:
    """A run in a few numbers; of gradients only where they were read."""
    first = next(iter(trace.gradients), None) or {}
    last = movement(trace, -1) if trace.weights else {}
    norms = [torch.stack(torch._foreach_norm([*each.values()])).norm().item() for each in trace.gradients if each]
    return Sketch(_measures(first), _measures(last), tuple(norms), tuple(trace.logged))


def _measures(tensors: Tensors) -> dict[str, Measure]:
    measures: dict[str, Measure] = {}
    for name, tensor in tensors.items():
        signs = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.randint(0, 2, (tensor.numel(),), generator=signs) * 2 - 1
        measures[name] = (tensor.norm().item(), float(tensor.flatten().dot(drawn.to(tensor.dtype))))
    return measures
