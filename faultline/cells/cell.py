"""Cells: one run of one variant in one place of the matrix."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from faultline import strategies
from faultline.base.axes import AXES, NAMES, OPTIONAL, WORLD_SIZE
from faultline.base.errors import UsageError
from faultline.base.text import matches

if TYPE_CHECKING:
    from faultline.base.axes import Axis
    from faultline.catalogue import Failure, Variant

WORLD_SIZES = tuple(size for size in WORLD_SIZE.values if size <= strategies.ROWS)
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


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Values of axes that somebody names, mostly patterns; an axis without any may have any value."""

    variant: tuple[str, ...] = ()
    strategy: tuple[str, ...] = ()
    checkpointing: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    world_size: tuple[int, ...] = ()
    life: tuple[str, ...] = ()
    compile: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """One run with one outcome; its id is the axes joined by slashes, without optional ones at their default."""

    failure: str
    variant: str
    strategy: str
    checkpointing: str = "off"
    precision: str = "fp32"
    world_size: int = 2
    device: str = "cpu"
    life: str = "straight"
    compile: str = "off"

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
        place = (self.variant, self.strategy, self.checkpointing, self.precision, f"w{self.world_size}")
        return "/".join((*place, *self.extras, self.device))

    @property
    def extras(self) -> tuple[str, ...]:
        """Its values of the optional axes that aren't at their default, as its id has them."""
        values = ((getattr(self, axis.name), axis.default) for axis in OPTIONAL)
        return tuple(str(value) for value, default in values if value != default)

    @property
    def broken(self) -> bool:
        """As `catalogue.Variant.broken`, by the variant's name: it may be one that the catalogue has no more."""
        return self.variant.endswith("broken")

    @staticmethod
    def parse(text: str) -> Cell:
        """Read an id back; raises UsageError for anything else."""
        needed = [axis for axis in AXES if not axis.optional]
        *before, device = text.split("/")
        before, more = before[: len(needed) - 1], before[len(needed) - 1 :]
        values: dict[str, Any] = dict(zip((axis.name for axis in needed), (*before, device), strict=False))
        named = len(values) == len(needed) and len(more) <= len(OPTIONAL) and all(more)
        if not named or not re.fullmatch("w[1-9][0-9]*", values["world_size"]):
            raise UsageError(f"not a cell: {text!r} (expected {'/'.join(axis.name for axis in needed[:5])}/wN/device)")
        values["world_size"] = int(values["world_size"][1:])
        for number, axis in enumerate(OPTIONAL):
            if more and not any(more[0] in later.values for later in OPTIONAL[number + 1 :]):
                values[axis.name] = more.pop(0)
        cell = Cell(**values)
        if cell.id != text:
            usual = " or ".join(axis.default for axis in OPTIONAL)
            raise UsageError(f"not a cell: {text!r} (an id doesn't name {usual} behind the number of ranks)")
        return cell


@functools.lru_cache(maxsize=1 << 14)
def reference(cell: Cell) -> Cell:
    """The run in one process that a cell is held against, which others of its variant share."""
    alone: Mapping[str, Any] = {axis.name: axis.alone for axis in AXES if axis.alone is not None}
    return replace(cell, **alone)


def within(cell: Cell, conditions: object, axes: Iterable[str]) -> bool:
    """Whether a cell is what conditions name on each of these axes, by patterns or numbers; none there means any."""
    return all(
        not (values := getattr(conditions, axis)) or matches(str(getattr(cell, axis)), tuple(map(str, values)))
        for axis in axes
    )


def split_values(text: str) -> tuple[str, ...]:
    """The values of an option that takes several between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def own_values(failure: Failure | None, variant: str) -> dict[str, Any]:
    """Where on each optional axis a variant runs by default, by its name: the catalogue may have it no more."""
    known = next((each for each in failure.variants if each.name == variant), None) if failure else None
    return {axis.name: getattr(known, axis.name, axis.default) for axis in OPTIONAL}


def default_world(cell: Cell) -> int:
    return strategies.usual_ranks(cell.strategy)


def known_values(axis: Axis) -> Sequence[Any]:
    """The values of an axis, in their order, but for failures and variants."""
    elsewhere = {"strategy": strategies.names, "world_size": lambda: WORLD_SIZES}
    return elsewhere[axis.name]() if axis.name in elsewhere else axis.values


def values(failures: Iterable[Failure]) -> dict[str, Sequence[Any]]:
    """Every value of each axis that cells of these failures may have."""
    variants = [*dict.fromkeys(variant.name for failure in failures for variant in failure.variants)]
    return {axis.name: known_values(axis) or variants for axis in AXES[1:]}


def every_cell(
    failures: Mapping[str, Failure],
    device: str,
    runs: Callable[[Variant, str], bool] = lambda variant, strategy: True,
    among: Mapping[str, Collection[Any]] | None = None,
) -> Iterable[tuple[Cell, Variant]]:
    """The whole product, sense or not, in a stable order; of axes in `among`, with these values alone, and without the
    variants under strategies where none `runs`."""
    known = {
        name: [v for v in every if v in (among or {}).get(name, every)]
        for name, every in values(failures.values()).items()
    }
    for failure in failures.values():
        for variant, strategy in product(failure.variants, known["strategy"]):
            if variant.name not in known["variant"] or not runs(variant, strategy):
                continue
            for place in product(*(known[name] for name in NAMES[3:-1])):
                axes = dict(zip(NAMES[3:-1], place, strict=True))
                yield Cell(failure.name, variant.name, strategy, device=device, **axes), variant
