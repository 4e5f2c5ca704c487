"""The axes of the matrix: how ids, options and rules name them, and their values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis of the matrix, with a field of its name in `Cell` and in `Conditions`.

    `values` are in their order; of failures, variants and strategies others know them. `default` is where a cell is
    unless that is said. An `optional` axis is left out of an id there, and `rule` is why the default matrix leaves out
    its other values, unless a variant asks for them. `alone` is where the run in one process is that others are held
    against, if it is in one place only. On the command line it is `option`, or its name, explained by `help`; `aliases`
    are other words for its values.
    """

    name: str
    help: str = ""
    values: Sequence[Any] = ()
    default: Any = None
    alone: Any = None
    optional: bool = False
    rule: str = ""
    option: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def word(self) -> str:
        """Its name on the command line."""
        return self.option or self.name


STRATEGY = Axis("strategy", "Strategies, such as ddp,zero*,fsdp2.", alone="single")
MODE = Axis("checkpointing", "off, reentrant or non-reentrant.", ("off", "reentrant", "non-reentrant"), "off", "off")
PRECISION = Axis(
    "precision", "fp32 or bf16.", ("fp32", "bf16"), "fp32", aliases={"float32": "fp32", "bfloat16": "bf16"}
)
WORLD_SIZE = Axis(
    "world_size",
    "World sizes: 1, 2 or 4 ranks; 8 where FAULTLINE_ROWS=8 is set.",
    (1, 2, 4, 8),
    default=2,
    alone=1,
    option="world",
)
LIFE = Axis(
    "life",
    "straight, or resumed: saved, loaded in fresh ranks and trained on; resized: saved by twice as many.",
    ("straight", "resumed", "resized"),
    "straight",
    optional=True,
    rule="training runs through, or is resumed in each cell of a variant that asks for it",
)
COMPILE = Axis(
    "compile",
    "off, or aot_eager: the wrapped model is compiled with this backend of torch.compile.",
    ("off", "aot_eager"),
    "off",
    alone="off",
    optional=True,
    rule="the model is compiled in the cells that a failure names",
)
DEVICE = Axis("device", "cpu (default) or cuda.", ("cpu", "cuda"), "cpu", aliases={"gpu": "cuda", "nvidia": "cuda"})

AXES = (Axis("failure"), Axis("variant"), STRATEGY, MODE, PRECISION, WORLD_SIZE, LIFE, COMPILE, DEVICE)
"""In the order of an id."""
NAMES = tuple(axis.name for axis in AXES)
OPTIONAL = tuple(axis for axis in AXES if axis.optional)
CHECKPOINTING, PRECISIONS, LIVES, DEVICES = MODE.values, PRECISION.values, LIFE.values, DEVICE.values
