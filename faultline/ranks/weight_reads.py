"""Where a model's weights are read: in a forward pass of their module, or outside of it. And inputs that it wrote."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class Reads(TorchFunctionMode):
    """Sees the weights from which a graph begins, while it is held open; names of modules that run are `inside`.

    `outside` has those that are read where no forward pass of a module runs that holds them: ranks that have shards of
    a weight have the whole of it in that pass alone. `again` has the modules that `wrote` an input which is read after
    them.
    """

    def __init__(self, model: torch.nn.Module, inside: Collection[str]) -> None:
        super().__init__()
        self.outside: dict[str, None] = {}
        self.again: dict[str, None] = {}
        self.wrote: dict[int, tuple[torch.Tensor, str]] = {}  # kept, or another tensor had its id
        self._inside = inside
        self._names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(parameter), []).append(name)

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        graph = isinstance(result, torch.Tensor) and result.grad_fn is not None
        if graph and torch._C._current_graph_task_id() == -1:  # or a checkpoint computes it again
            for value in (*args, *(kwargs or {}).values()):
                for part in value if isinstance(value, list | tuple) else (value,):
                    self._read(part)
                    if id(part) in self.wrote:
                        self.again.setdefault(self.wrote[id(part)][1])
        return result

    def _read(self, value: Any) -> None:
        names = self._names.get(id(value), ()) if isinstance(value, torch.nn.Parameter) else ()
        if names and not any(name.rpartition(".")[0] in self._inside for name in names):
            self.outside.setdefault(names[0])
