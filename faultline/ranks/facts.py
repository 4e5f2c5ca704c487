"""What was seen of a model's modules and parameters while it trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Names = tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """What was seen, by name: of a run in one process all, under a strategy `apart`, `inside` and `entered` hold.

    - `model`: the class of the model; empty where nothing was seen. In JSON it is ``class``.
    - `no_gradient`, `zero_gradient`: trainable parameters in no step of which one came
    - `several_calls`: modules that run more than once in a forward pass
    - `frozen_input`: blocks that train on inputs without a graph, and what the model's own reentrant checkpoints cut
      off for that (see `checkpointing.CutOff`)
    - `unfrozen`: parameters that require gradients only since a step
    - `entered`: the classes of the model and of what is around it whose forward passes ran
    - `unequal`: modules that run for some ranks' rows only
    - `tied`: the names of one parameter; `apart`: those of them that aren't one any more
    - `order`: all modules as they run; `inside`: the innermost module whose forward pass did not end
    - `not_fed`: what a made-up batch leaves out, and why; `cast`: the types of weights that were made fp32
    - `checkpointing`, `noise`: of a reference, its mode and how far rounding moves its gradients
    """

    model: str = ""
    parameters: int = 0
    trainable: int = 0
    no_gradient: Names = ()
    zero_gradient: Names = ()
    several_calls: Names = ()
    frozen_input: Names = ()
    unfrozen: Names = ()
    entered: Names = ()
    unequal: Names = ()
    tied: tuple[Names, ...] = ()
    apart: tuple[Names, ...] = ()
    order: Names = ()
    inside: str | None = None
    not_fed: Names = ()
    cast: Names = ()
    checkpointing: str = "off"
    noise: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.model)

    def as_json(self) -> Mapping[str, Any]:
        """The mapping that JSON has; empty where nothing was seen."""
        values = dataclasses.asdict(self)
        return {"class": values.pop("model"), **values} if self else {}
