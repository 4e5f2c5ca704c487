"""What the templates of one file read."""

import textwrap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from faultline import strategies
from faultline.base.axes import COMPILE
from faultline.cells.cell import Cell
from faultline.export.cell import COMPARED, ExportedCell
from faultline.export.specialise import Built, gives_back
from faultline.strategies import Family, Setup

ERROR_LIKE = ("raises", "crashes", "hangs")
# Parts whose names mean something else in the loop, and their names there.
LOCAL = {name: f"make_{name}" for name in ("optimizer", "scheduler")}
PATTERN_LINES = textwrap.TextWrapper(
    105, drop_whitespace=False, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
)


@dataclass(frozen=True)
class File:
    """One file: its cell, what it looks for, what its failure's function has become, and what its code makes use of.

    `reads` are the fields of `setup` that are asked for.
    """

    place: ExportedCell
    kind: str
    built: Built
    reads: frozenset[str] = frozenset()
    dropout: bool = False
    samples: bool = False
    folder: bool = True

    @property
    def cell(self) -> Cell:
        return self.place.cell

    @property
    def compared(self) -> bool:
        """Whether the cell is also run in one process."""
        return self.kind in COMPARED

    @property
    def error_like(self) -> bool:
        """Whether the cell ends otherwise than by the end of its training."""
        return self.kind in ERROR_LIKE

    @property
    def flags(self) -> dict[str, Any]:
        """What is known of the file in its templates, by the names that these have for it."""
        flags = {
            "BF16": self.bf16,
            "COMPARED": self.compared,
            "CUDA": self.cuda,
            "DISTRIBUTED": self.distributed,
            "DROPOUT": self.dropout,
            "ERROR_LIKE": self.error_like,
            "KIND": self.kind,
            "RESUMED": self.resumed,
            "SAVES": self.place.saves,
            "SCHEDULED": self.resumed or "scheduler" in self.built.parts,
            "TRAINER": self.trainer,
            "UNTIED": self.untied,
            "WRITES": self.folder,
        }
        runs = {} if self.compared else {"in_one_process": False}
        return {**flags, **runs, **({} if self.resumed else {"half": 0})}

    @property
    def bf16(self) -> bool:
        return self.cell.precision == "bf16"

    @property
    def cuda(self) -> bool:
        return self.cell.device == "cuda"

    @property
    def compiled(self) -> bool:
        return self.cell.compile != COMPILE.default

    @property
    def distributed(self) -> bool:
        return strategies.distributed(self.cell.strategy)

    @property
    def trainer(self) -> bool:
        return bool(self.place.variant.trainer)

    @property
    def resumed(self) -> bool:
        """Whether the cell's life is in two halves."""
        return self.cell.life == "resumed"

    @property
    def options(self) -> Any:
        return strategies.options(self.cell.strategy)

    @property
    def autocast(self) -> bool:
        """Whether the loop casts to bf16, as the engine doesn't."""
        return self.bf16 and not strategies.family(self.cell.strategy).casts

    @property
    def accelerated(self) -> bool:
        return "second" in self.built.parts or self.built.accelerate

    @property
    def untied(self) -> bool:
        return self.place.signature == "checkpoint-untied"

    @property
    def family(self) -> Family:
        return strategies.family(self.cell.strategy)

    @property
    def template(self) -> str:
        """The family's template, or the one for families that have none."""
        file = self.family.template
        return file.name if file.exists() else "strategy.py.j2"

    @property
    def setup(self) -> Setup:
        """What a strategy needs to know of the cell; of ranks, what is the same on each."""
        micro_batches = 1 if "by_hand" in self.built.parts else self.built.micro_batches
        cell = self.cell
        place = 0, cell.world_size, cell.checkpointing, cell.precision, None, ""
        return Setup(*place, {}, micro_batches, strategy=cell.strategy)

    @property
    def data_rank(self) -> str:
        """The expression of whose rows of a global batch a rank has."""
        world = self.cell.world_size
        places = [strategies.data_place(self.cell.strategy, rank, world)[0] for rank in range(world)]
        return "rank" if places == [*range(world)] else f"{places}[rank]"

    @property
    def data_world(self) -> str:
        """The expression of among how many the rows of a global batch are shared out."""
        world = self.cell.world_size
        if (data_world := self.setup.data_world) == world:
            return "world_size" if self.compared else "WORLD_SIZE"
        return f"(1 if in_one_process else {data_world})" if self.compared else str(data_world)

    @cached_property
    def replaces_model(self) -> bool:
        """Whether what runs between the steps may give back another model."""
        return gives_back(self.built.statements, self.built.parts.get("before_step", ""))

    @cached_property
    def named_parts(self) -> dict[str, str]:
        """The parts of a scenario that need a name in the loop, and their expressions."""
        hidden = "optimizer" if self.replaces_model else ""  # by the optimizer that it makes, and needed again
        parts = self.built.parts.items()
        named = {n: e for n, e in parts if not e.isidentifier() or e == hidden or (n == "model" and e != n)}
        return {LOCAL.get(name, name): expression for name, expression in named.items()}

    @property
    def calls(self) -> dict[str, str]:
        """The name by which the loop calls each part of a scenario."""
        local = {part: LOCAL.get(part, part) for part in self.built.parts}
        return {
            part: local[part] if local[part] in self.named_parts else value for part, value in self.built.parts.items()
        }

    def optimizer(self, model: str) -> str:
        """The expression that makes the optimizer of a model with this name."""
        if "optimizer" in self.calls:
            return f"{self.calls['optimizer']}({model})"
        return f"torch.optim.SGD([p for p in {model}.parameters() if p.requires_grad], lr=0.05, momentum=0.9)"

    def on_device(self, batch: str) -> str:
        return f"to({batch}, device)" if self.cuda else batch

    @property
    def pattern(self) -> str:
        """The pattern of the error as source, with lines broken at spaces if it is long."""
        lines = PATTERN_LINES.wrap(self.place.pattern)
        return "(" + "\n".join(repr(each) if '"' in each else f'r"{each}"' for each in lines) + ")"
