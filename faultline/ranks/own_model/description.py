"""What a script that builds somebody's own model again has to know of it, some of it as Python source."""

import json
import sys
from typing import Any

import torch

from faultline.base.errors import FaultlineError, Impossible, Refused
from faultline.ranks.job import Target
from faultline.ranks.own_model import batch as own_model_batch
from faultline.ranks.own_model import target as own_model
from faultline.strategies.shared import SHARES, units

FEW = 4096  # numbers of a tensor that are written down; of more, random ones are drawn


def main() -> None:
    """Read a job's target as JSON from standard input, and print what was found as JSON, in the last line."""
    try:
        answer = describe(Target(**json.load(sys.stdin)))
    except FaultlineError as error:
        answer = {"refused": " ".join(str(error).split())}
    print(json.dumps(answer))


def describe(target: Target) -> dict[str, object]:
    """The fields of `job.Written`. Raises Refused for what a script can't build as a check does."""
    model, loss, _ = own_model.parts(own_model.build(target))
    config = "" if target.function else model.config.to_json_string(use_diff=True)
    model_class = "" if target.function else type(model).__name__
    model, cast = own_model.in_fp32(model)
    model = own_model.ready(model, target.lora, target.units)
    given = "" if loss else source(own_model_batch.of(model)[0])
    try:
        names = sorted({type(each).__name__ for each in units(model)})
    except Impossible:
        names = []
    if any(type(each).__name__ in names and getattr(each, SHARES, False) for each in model.modules()):
        raise Refused("some of its blocks share weights with others, and the script has no such units")
    return {"units": names, "config": config, "model_class": model_class, "batch": given, "cast": bool(cast)}


def source(value: Any) -> str:
    """A batch as an expression: with the same shapes and whole numbers, and other random ones in large tensors."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel() > FEW:
            return f"torch.randn({list(value.shape)}, generator=torch.Generator().manual_seed(0))"
        return f"torch.tensor({value.tolist()}, dtype={value.dtype})"
    if hasattr(value, "items"):
        return "{" + ", ".join(f"{key!r}: {source(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(source, value)) + "]"
    if isinstance(value, bool | int | float | str | type(None)):
        return repr(value)
    raise Refused(f"the generated batch has {type(value).__name__}, which can't be written down")
