"""How a model is trained, as features beside those of its spec."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.programs.settings import TRAINERS
from lab.programs.spec import one_of

LIMIT = {"norm": 0.1, "value": 0.01}  # of what is clipped; the gradients of all programs exceed both


@dataclass(frozen=True)
class Training:
    """What a loop does beside a forward pass, a backward pass and a step; the first value of each is plain.

    - `joined`: how many micro-batches are put together into one; `swapped`: ranks have each other's rows; `scaled`: the
      loss is twice as large
    - `accumulate`: how many micro-batches a step has; `accumulating`: by the engine, or by a loop that calls `backward`
      for each and `step` once
    - `clip`: by the norm of all gradients, or each value; `optimizer`: its class, two groups with their rates, or two
      optimizers
    - `cleared`: what a step leaves of gradients, nothing or zeros; `backward`: of the whole loss, or of its halves
    - `schedule`: each step has the learning rate of the one before, or half of it
    - `between`: what runs between two steps: a forward pass in eval mode, also without autograd's bookkeeping, a
      checkpoint that is saved, or one that is also loaded, or a generation, in trainers of TRL
    - `recompute`: which blocks are checkpointed from outside of the model
    - `spare_runs`: in which steps a layer takes part that nothing else uses; `spare_frozen`: it doesn't train
    - `tying`: a head that is tied has the embedding's parameter, or takes its weight in the forward pass
    - `unfreeze`: what is frozen trains from the second step on; `silent`: the loss of a rank is zero in the first step
    - `teacher`: a frozen copy of the model takes part in the loss, which accelerate may have prepared; `adapter`: what
      is trained in place of the model
    - `around`: the loss calls the model inside of the engine's wrapper; `begins`: ranks build the same weights, each
      builds others, or all load others into the wrapped model
    - `through`: what the loop is written with, or the trainer; those of TRL train a model of transformers
    - `tokens`: the rows of a trainer of TRL that doesn't sample have as many of them, or not
    - `checkpointing`, `precision`, `world_size`, `life`: those of the cell
    """

    joined: int = one_of(1, 2, 3)
    swapped: bool = one_of(False, True)
    scaled: bool = one_of(False, True)
    accumulate: int = one_of(1, 2, 3)
    accumulating: str = one_of("engine", "by hand")
    clip: str = one_of("none", "norm", "value")
    optimizer: str = one_of("sgd", "adamw", "groups", "no momentum", "adafactor", "two")
    schedule: str = one_of("constant", "halving")
    cleared: str = one_of("nothing", "zeros")
    backward: str = one_of("whole", "halves")
    between: str = one_of("nothing", "evaluation", "inference", "saving", "reloading", "generation")
    recompute: str = one_of("nothing", "last block", "every block")
    spare_runs: str = one_of("never", "at first", "later")
    spare_frozen: bool = one_of(False, True)
    tying: str = one_of("one parameter", "by hand")
    unfreeze: bool = one_of(False, True)
    silent: bool = one_of(False, True)
    teacher: str = one_of("none", "copy", "prepared")
    adapter: str = one_of("none", "lora")
    around: bool = one_of(False, True)
    begins: str = one_of("alike", "by rank", "loaded")
    through: str = one_of("engine", "accelerate", *TRAINERS)
    tokens: str = one_of("alike", "uneven")
    checkpointing: str = one_of("off", "non-reentrant", "reentrant")
    precision: str = one_of("fp32", "bf16")
    world_size: int = one_of(2, 4, 1)
    life: str = one_of("straight", "resumed", "resized")


VALUES: Mapping[str, tuple[Any, ...]] = {each.name: each.metadata["values"] for each in dataclasses.fields(Training)}
"""The values of each feature, the plain one first."""
