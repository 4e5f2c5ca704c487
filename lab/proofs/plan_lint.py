"""What reads wrong in a plan of tensor parallelism: found by one process, from what meets what in a forward pass."""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from faultline.ranks.observer import tensors
from faultline.ranks.own_model import batch as own_batch
from faultline.ranks.own_model.target import ready, tiny
from faultline.scenario import mapped
from lab.proofs.plans import planned

SUMMED = "replicated_with_grad_allreduce"
WHOLE = (SUMMED, "mla_kv_a_proj", "local_params", "replicate", "all_reduce", "moe_identity_expert", "sequence_parallel")
MOST = 5  # names of a kind that are shown
UNHOOKED = (SUMMED, "local_params", "replicate", "sequence_parallel")  # sum no gradient behind their module
SPLIT = ("colwise", "packed_colwise")  # their module's output is a rank's part
CUTS = ("chunk", "split", "__getitem__")  # functions that take a part of a fused output
OVER = ("mean", "std", "var", "sum", "softmax", "norm", "layer_norm", "rms_norm", "cumsum", "topk", "amax", "max")
MOVES = ("view", "reshape", "transpose", "permute", "unflatten", "flatten")  # may make another dimension the last


class Parts(TorchFunctionMode):
    """Follows what each rank would have a part of, and which replicated weights meet it behind no layer of the plan.

    A tensor is `parted`, or of some `weights`: those that it was computed from since a layer of the plan summed
    gradients.
    """

    def __init__(self, model: torch.nn.Module, plan: dict[str, str]) -> None:
        super().__init__()
        self.partial: dict[str, None] = {}
        self.wrong: dict[str, None] = {}
        self._parted: set[int] = set()  # ids of tensors, as of the following
        self._weights: dict[int, frozenset[str]] = {}
        self._last: dict[int, str] = {}  # by the layer, what has a rank's part of the last dimension
        self._kept: list[Any] = []  # so that no id is given twice
        for name, parameter in model.named_parameters():
            style = plan.get(name)
            if style and style not in WHOLE:
                self._parted.add(id(parameter))
            elif parameter.requires_grad:
                self._weights[id(parameter)] = frozenset({name})

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [*tensors((args, kwargs or {}))]
        result = function(*args, **kwargs or {})
        made = [each for each in tensors(result) if each.is_floating_point()]
        parted = not self._parted.isdisjoint(map(id, given))
        weights = frozenset().union(*(self._weights.get(id(each), ()) for each in given))
        if layer := self._last.get(id(given[0])) if given else None:
            self._look(function.__name__, layer, args, kwargs or {})
            for each in made:
                if each.shape[-1:] == given[0].shape[-1:] and function.__name__ not in MOVES:
                    self._last[id(each)] = layer
        if parted and made:
            self.partial.update(dict.fromkeys(weights))
        for each in made:
            self._mark(each, parted, frozenset() if parted else weights)
        return result

    def _look(self, function: str, layer: str, args: Any, kwargs: Any) -> None:
        """Note what a function does along the last dimension, of which a rank has a part."""
        tensor = args[0] if args else kwargs["input"]
        place = 2 if function in ("split", "chunk", "norm") else 1
        dim = kwargs.get("dim", args[place] if len(args) > place else None)
        if function == "__getitem__":
            dim = -1 if isinstance(dim, tuple) and dim[0] is Ellipsis and isinstance(dim[-1], slice) else None
        elif function in ("layer_norm", "rms_norm"):
            dim = -1
        last = [dim] if isinstance(dim, int) else dim if isinstance(dim, tuple | list) else []
        if -1 in last or tensor.ndim - 1 in last:
            if function in CUTS:
                self.wrong.setdefault(f"{layer} is cut in parts")
            elif function in OVER:
                self.wrong.setdefault(f"{function} of {layer}")

    def _mark(self, tensor: torch.Tensor, parted: bool, weights: frozenset[str]) -> None:
        self._kept.append(tensor)
        self._weights[id(tensor)] = weights
        (self._parted.add if parted else self._parted.discard)(id(tensor))

    def enters(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """A layer of the plan sums the gradients of its inputs: what they were computed from is whole."""

        def behind(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            with torch._C.DisableTorchFunction():
                fresh = tensor.detach()
            self._mark(fresh, id(tensor) in self._parted, frozenset())
            return fresh

        return mapped(args, behind), mapped(kwargs, behind)

    def leaves(self, name: str, style: str, module: torch.nn.Module, args: Any, output: Any) -> None:
        """The output of a layer of the plan is whole, or a rank's part."""
        for each in tensors(output):
            self._mark(each, style in SPLIT, frozenset())
            if style == "colwise":
                self._last[id(each)] = name


def candidates(model: Any) -> Iterator[str]:
    """What may be wrong with a model's plan, a line each."""
    entries = dict(model.tp_plan or {})
    plan = model._expand_parallel_plan(entries)
    known = {_generic(name) for name, _ in [*model.named_modules(), *model.named_parameters()]}
    for entry in sorted(entries.keys() - known):
        yield f"no module: {entry} ({entries[entry]})"
    batch, _ = own_batch.of(model)
    parts, modules = Parts(model, plan), dict(model.named_modules())
    for name, style in plan.items():
        if name in modules and style not in UNHOOKED:
            modules[name].register_forward_pre_hook(parts.enters, with_kwargs=True)
            modules[name].register_forward_hook(partial(parts.leaves, name, style))
    with torch.no_grad(), parts:
        model(**batch)
    summed = {name for name, style in plan.items() if style == SUMMED}
    yield from _brief("partial gradient", (each for each in parts.partial if each not in summed))
    yield from _brief("summed, but whole", (each for each in summed if each not in {**modules, **parts.partial}))
    yield from _brief("along a part", parts.wrong)


def _generic(name: str) -> str:
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _brief(what: str, names: Iterable[str]) -> Iterator[str]:
    """A line for each name, with a star for a layer's number; of many the last ones, which are nearest."""
    every = [*dict.fromkeys(map(_generic, names))]
    if len(every) > MOST:
        yield f"{what}: {len(every) - MOST} more"
    yield from (f"{what}: {name}" for name in every[-MOST:])


def main(names: Iterable[str]) -> None:
    """Print the candidates of some model types, or of all that have a plan of tensor parallelism."""
    types = {name: cls for name, (cls, kinds) in planned().items() if "tp" in kinds}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or types:
            file = Path(folder) / "config.json"
            file.write_text(json.dumps({"model_type": name, "architectures": [types[name]]}))
            try:
                lines = [*candidates(ready(tiny(file), {}))]
            except Exception as error:  # noqa: BLE001 - what can't be built or run says so in any way
                lines = [f"not read: {' '.join(f'{type(error).__name__}: {error}'.split())[:120]}"]
            for line in lines:
                print(f"{name}: {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
