"""Cells: one run of one variant in one place of the matrix, and which of them make sense."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from faultline import strategies
from faultline.catalogue import Failure, Variant
from faultline.errors import UsageError, unknown

CHECKPOINTING = ("off", "reentrant", "non-reentrant")
PRECISIONS = ("fp32", "bf16")
WORLD_SIZES = (1, 2, 4)
DEVICES = ("cpu", "cuda")
STEPS = 3
ROWS = 4  # of the global batch, which the ranks share
# The largest relative error that a healthy cell may show. README.md has what healthy cells do show, and the
# least that sick ones do; losing one rank of four moves a gradient by tens of percent.
TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}
# How many times the reference's measured noise still counts as rounding. README.md has how many times healthy
# cells show; in bf16 the noise of some models is so large that 20 times would hide a lost rank.
MARGIN = {"fp32": 20.0, "bf16": 6.0}

AXES = ("failure", "variant", "strategy", "checkpointing", "precision", "world_size", "device")


@dataclass(frozen=True)
class Cell:
    """One run with one outcome; its id is the seven axes joined by slashes."""

    failure: str
    variant: str
    strategy: str
    checkpointing: str = "off"
    precision: str = "fp32"
    world_size: int = 2
    device: str = "cpu"

    @property
    def id(self) -> str:
        return f"{self.failure}/{self.name}"

    @property
    def name(self) -> str:
        """The id without the failure: what pytest shows behind the file."""
        return "/".join(
            (self.variant, self.strategy, self.checkpointing, self.precision, f"w{self.world_size}", self.device)
        )

    @property
    def broken(self) -> bool:
        """As `catalogue.Variant.broken`, by the variant's name: it may be one that the catalogue has no more."""
        return self.variant.endswith("broken")

    @staticmethod
    def parse(text: str) -> Cell:
        """Read an id back; raises UsageError for anything else."""
        parts = text.split("/")
        if len(parts) != 7 or not re.fullmatch("w[1-9][0-9]*", parts[5]):
            raise UsageError(f"not a cell: {text!r} (expected {'/'.join(AXES[:5])}/wN/device)")
        failure, variant, strategy, checkpointing, precision, world, device = parts
        return Cell(failure, variant, strategy, checkpointing, precision, int(world[1:]), device)


@dataclass(frozen=True)
class Selection:
    """What was asked for on the command line; an empty axis takes the default matrix.

    Values may be patterns (``zero*``). `world_size` holds numbers, `cells` whole ids.
    """

    failure: tuple[str, ...] = ()
    variant: tuple[str, ...] = ()
    strategy: tuple[str, ...] = ()
    checkpointing: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    world_size: tuple[int, ...] = ()
    device: str = "cpu"
    cells: tuple[str, ...] = ()


def listed(text: str) -> tuple[str, ...]:
    """The values of an option that takes several between commas."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@functools.lru_cache(100_000)  # a cell has few values on each axis, and is asked for each rule and claim
def matches(value: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns)


Rule = Callable[[Cell, Variant], bool]

# Why a combination can't exist: these cells are never run, whatever is asked for.
SENSELESS: dict[str, Rule] = {
    "the single strategy is one process, so its world size is 1": lambda c, v: (
        c.strategy == "single" and c.world_size != 1
    ),
    "the variant names the strategies that it is about": lambda c, v: not matches(c.strategy, v.strategies),
}

# What the default matrix leaves out; asking for the value on the command line brings it back.
SUBSET_STRATEGIES = ("single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
MODES = "the variant names the checkpointing modes in which it runs by default"
NOT_BY_DEFAULT: dict[str, Rule] = {
    MODES: lambda c, v: not matches(c.checkpointing, v.checkpointing),
    "bf16 runs for broken variants under single, ddp, zero2, zero3, fsdp1-full and fsdp2, and where a variant asks for"
    " it, at the default world size": (
        lambda c, v: (
            c.precision == "bf16"
            and not (
                c.world_size == default_world(c)
                and (v.bf16 or (v.remedy == "broken" and c.strategy in SUBSET_STRATEGIES))
            )
        )
    ),
    "world sizes 1 and 4 run for broken variants at scenario level, without checkpointing and with reentrant": (
        lambda c, v: (
            c.world_size != default_world(c)
            and not (v.remedy == "broken" and not v.trainer and c.checkpointing != "non-reentrant")
        )
    ),
    "world size 4 runs under ddp, zero2, zero3, fsdp1-full and fsdp2; world size 1 under ddp, zero2, zero3 and fsdp2": (
        lambda c, v: (
            c.world_size != default_world(c)
            and c.strategy not in (SUBSET_STRATEGIES if c.world_size == 4 else ("ddp", "zero2", "zero3", "fsdp2"))
        )
    ),
}


RULES = {**SENSELESS, **NOT_BY_DEFAULT}


def default_world(cell: Cell) -> int:
    return 1 if cell.strategy == "single" else 2


def every_cell(failures: Mapping[str, Failure], device: str) -> Iterable[tuple[Cell, Variant]]:
    """The whole product, sense or not, in a stable order."""
    for failure in failures.values():
        axes = product(failure.variants, strategies.names(), CHECKPOINTING, PRECISIONS, WORLD_SIZES)
        for variant, strategy, checkpointing, precision, world in axes:
            yield Cell(failure.name, variant.name, strategy, checkpointing, precision, world, device), variant


def possible(cell: Cell, variant: Variant) -> bool:
    return not any(rule(cell, variant) for rule in SENSELESS.values())


def exists(failures: Mapping[str, Failure], cell: Cell) -> bool:
    """Whether the cell can be run, by default or not."""
    variants = failures[cell.failure].variants if cell.failure in failures else ()
    variant = next((variant for variant in variants if variant.name == cell.variant), None)
    return (
        variant is not None
        and cell.strategy in strategies.names()
        and cell.checkpointing in CHECKPOINTING
        and cell.precision in PRECISIONS
        and cell.world_size in WORLD_SIZES
        and cell.device in DEVICES
        and possible(cell, variant)
    )


def select(failures: Mapping[str, Failure], selection: Selection) -> list[Cell]:
    """The cells to run: the default matrix narrowed, or widened where an axis is named."""
    check(failures, selection)
    if selection.cells:
        wanted = {Cell.parse(text): None for text in selection.cells}
        for cell in wanted:
            if not exists(failures, cell):
                known = [k for k, variant in every_cell(failures, selection.device) if possible(k, variant)]
                beside = [k.id for k in known if (k.failure, k.variant) == (cell.failure, cell.variant)]
                raise unknown("cell", cell.id, beside or sorted({k.id for k in known if k.strategy == "ddp"}))
        return list(wanted)
    chosen = {name: failure for name, failure in failures.items() if matches(name, selection.failure or ("*",))}
    return [
        cell
        for cell, variant in every_cell(chosen, selection.device)
        if possible(cell, variant)
        and _asked(cell, selection)
        and not any(rule(_as_default(cell, selection), variant) for rule in _not_by_default(selection))
    ]


def left_out(failures: Mapping[str, Failure], selection: Selection) -> Iterator[tuple[Cell, str]]:
    """Each combination that the default matrix lacks and every named axis holds, with the first rule against it."""
    check(failures, selection)
    for cell, variant in every_cell(failures, selection.device):
        rule = next((text for text, rule in RULES.items() if rule(cell, variant)), "")
        if rule and _asked(cell, selection):
            yield cell, rule


def _asked(cell: Cell, selection: Selection) -> bool:
    """Whether every axis that was named holds the cell."""
    worlds, cells = selection.world_size, selection.cells
    return (
        (not worlds or cell.world_size in worlds)
        and (not cells or cell.id in cells)
        and all(
            matches(getattr(cell, axis), getattr(selection, axis) or ("*",))
            for axis in ("failure", "variant", "strategy", "checkpointing", "precision")
        )
    )


def _not_by_default(selection: Selection) -> list[Rule]:
    """The default rules that hold for what was asked for: naming a mode brings it back for every variant."""
    return [rule for text, rule in NOT_BY_DEFAULT.items() if not (text == MODES and selection.checkpointing)]


def _as_default(cell: Cell, selection: Selection) -> Cell:
    """The cell as the default rules should see it: an axis that was named is no reason to leave it out."""
    if not selection.precision and not selection.world_size:
        return cell
    return replace(
        cell,
        precision="fp32" if selection.precision else cell.precision,
        world_size=default_world(cell) if selection.world_size else cell.world_size,
    )


def check(failures: Mapping[str, Failure], selection: Selection) -> None:
    """Refuse names that match nothing, with the nearest ones."""
    chosen = [f for f in failures.values() if matches(f.name, selection.failure or ("*",))]
    known = {
        "failure": list(failures),
        "variant": sorted({v.name for f in chosen for v in f.variants}),
        "strategy": strategies.names(),
        "checkpointing": list(CHECKPOINTING),
        "precision": list(PRECISIONS),
    }
    for axis, names in known.items():
        for pattern in getattr(selection, axis):
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                raise unknown(axis, pattern, names)
    for world in selection.world_size:
        if world not in WORLD_SIZES:
            raise UsageError(f"world size {world}: the global batch of {ROWS} rows divides over 1, 2 or 4 ranks")
    if selection.device not in DEVICES:
        raise unknown("device", selection.device, list(DEVICES))
