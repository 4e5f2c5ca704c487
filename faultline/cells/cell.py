"""Cells: one run of one variant in one place of the matrix."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.base.text import matches
from faultline.catalogue import Failure, Variant

CHECKPOINTING = ("off", "reentrant", "non-reentrant")
PRECISIONS = ("fp32", "bf16")
WORLD_SIZES = tuple(size for size in (1, 2, 4, 8) if size <= strategies.ROWS)
DEVICES = ("cpu", "cuda")
LIVES = ("straight", "resumed", "resized")
STEPS = 3
# A resumed life trains so many steps, saves, and trains as many again in fresh ranks: the last one shows what momentum
# and schedule were restored to. A resized one is saved by twice as many ranks as load it.
HALF = 2
# The largest relative error that a healthy cell may show. docs/trust.md has what healthy cells do show, and the
# least that sick ones do; losing one rank of four moves a gradient by tens of percent.
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}
FLOOR = {"fp32": 1e-3, "bf16": 0.05}  # of a file: the part of the largest movement that smaller ones are held against
# How many times the reference's measured noise still counts as rounding. docs/trust.md has how many times healthy
# cells show; in bf16 the noise of some models is so large that 20 times would hide a lost rank.
MARGIN = {"fp32": 20.0, "bf16": 6.0}

AXES = ("failure", "variant", "strategy", "checkpointing", "precision", "world_size", "life", "device")


@dataclass(frozen=True)
class Cell:
    """One run with one outcome; its id is the axes joined by slashes, without `life` where training runs through."""

    failure: str
    variant: str
    strategy: str
    checkpointing: str = "off"
    precision: str = "fp32"
    world_size: int = 2
    device: str = "cpu"
    life: str = "straight"

    @property
    def steps(self) -> int:
        """How many steps a whole life has."""
        return STEPS if self.life == "straight" else 2 * HALF

    @property
    def saved_by(self) -> int:
        """The world size of the half that saves, where a life has two."""
        return 2 * self.world_size if self.life == "resized" else self.world_size

    @property
    def id(self) -> str:
        return f"{self.failure}/{self.name}"

    @property
    def name(self) -> str:
        """The id without the failure: what pytest shows behind the file."""
        life = () if self.life == "straight" else (self.life,)
        place = (self.variant, self.strategy, self.checkpointing, self.precision, f"w{self.world_size}")
        return "/".join((*place, *life, self.device))

    @property
    def broken(self) -> bool:
        """As `catalogue.Variant.broken`, by the variant's name: it may be one that the catalogue has no more."""
        return self.variant.endswith("broken")

    @staticmethod
    def parse(text: str) -> Cell:
        """Read an id back; raises UsageError for anything else."""
        parts = text.split("/")
        life = parts.pop(6) if len(parts) == 8 else "straight"
        if len(parts) != 7 or not re.fullmatch("w[1-9][0-9]*", parts[5]):
            raise UsageError(f"not a cell: {text!r} (expected {'/'.join(AXES[:5])}/wN/device)")
        failure, variant, strategy, checkpointing, precision, world, device = parts
        cell = Cell(failure, variant, strategy, checkpointing, precision, int(world[1:]), device, life)
        if not life or cell.id != text:
            raise UsageError(f"not a cell: {text!r} (training that runs through is not named in an id)")
        return cell


@functools.lru_cache(maxsize=1 << 14)
def reference(cell: Cell) -> Cell:
    """The run in one process that a cell is held against, which others of its variant share."""
    return replace(cell, strategy="single", checkpointing="off", world_size=1)


def within(cell: Cell, conditions: object, axes: Iterable[str]) -> bool:
    """Whether a cell is what conditions name on each of these axes, by patterns or numbers; none there means any."""
    return all(
        not (values := getattr(conditions, axis)) or matches(str(getattr(cell, axis)), tuple(map(str, values)))
        for axis in axes
    )


def split_values(text: str) -> tuple[str, ...]:
    """The values of an option that takes several between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def default_world(cell: Cell) -> int:
    return strategies.usual_ranks(cell.strategy)


def values(failures: Iterable[Failure]) -> dict[str, Sequence[Any]]:
    """Every value of each axis that cells of these failures may have."""
    variants = dict.fromkeys(variant.name for failure in failures for variant in failure.variants)
    return {
        "variant": [*variants],
        "strategy": strategies.names(),
        "checkpointing": CHECKPOINTING,
        "precision": PRECISIONS,
        "device": DEVICES,
        "world_size": WORLD_SIZES,
        "life": LIVES,
    }


def every_cell(
    failures: Mapping[str, Failure], device: str, runs: Callable[[Variant, str], bool] = lambda variant, strategy: True
) -> Iterable[tuple[Cell, Variant]]:
    """The whole product, sense or not, in a stable order; without the variants under strategies where none `runs`."""
    for failure in failures.values():
        for variant, strategy in product(failure.variants, strategies.names()):
            if not runs(variant, strategy):
                continue
            for checkpointing, precision, world, life in product(CHECKPOINTING, PRECISIONS, WORLD_SIZES, LIVES):
                cell = Cell(failure.name, variant.name, strategy, checkpointing, precision, world, device, life)
                yield cell, variant
