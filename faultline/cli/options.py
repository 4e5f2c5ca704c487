"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, make_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from faultline.base import machine
from faultline.base.axes import AXES, DEVICE, MODE, Axis
from faultline.base.errors import UsageError
from faultline.cli import completion
from faultline.cli.completion import one, several

if TYPE_CHECKING:
    from faultline.cells.selection import Selection
    from faultline.runs.engines import Engine

STDIN = "-"
HYPHEN = "\0"  # stands for a lone hyphen, which cyclopts takes for an option
CORES = machine.cores()


def hyphens(value: Any) -> Any:
    """What was given, with a hyphen wherever one stands alone."""
    if isinstance(value, tuple | list):
        return type(value)(map(hyphens, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{each.name: hyphens(getattr(value, each.name)) for each in fields(value)})
    return STDIN if value == HYPHEN else value


def at_least(least: int, option: str) -> Callable[[object, int | None], None]:
    """Has an option refuse what is less."""

    def refuse(_: object, value: int | None) -> None:
        if value is not None and value < least:
            raise ValueError(f"{option} must be at least {least}, not {value}")

    return refuse


def at_most_one(**given: object) -> None:
    """Refuse options that exclude each other."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} exclude each other: give one of them")


def with_cell(words: Iterable[str]) -> tuple[str, str] | None:
    """The first of some words that is a failure's name, and the id of a cell that shows it."""
    from faultline.catalogue.loading import failures
    from faultline.observations import measured

    name = next((word for word in words if word in failures()), "")
    cell = measured.example(failures()[name]) if name else None
    return (name, cell.id) if cell else None


def cells(text: str) -> str:
    """Cell ids with commas between them; raises UsageError for a failure's name."""
    if named := with_cell(text.split(",")):
        raise UsageError(f"{named[0]} is a failure, not a cell; this cell shows it: {named[1]}")
    return text


Names = Annotated[str, Parameter(metavar="NAMES")]
File = Annotated[str | Path, Parameter(metavar="FILE")]
"""A name that a shell completes as a file; it stays the text that was typed."""
Python = Annotated[File, Parameter(help="Another environment, by its interpreter.")]
Failure = Annotated[str, Parameter(help="The name of a failure.", completer=one(completion.failures))]
Stack = Annotated[str, Parameter(metavar="STACK", completer=one(completion.stacks))]
Checkpointing = Annotated[Names, Parameter(help=MODE.help, completer=several(completion.values(MODE)))]
Workers = Annotated[
    int, Parameter(validator=at_least(1, "--workers"), help="Cells that run at a time; by default, one for each core.")
]
Fresh = Annotated[bool, Parameter(help="Measure everything, also what was measured before.")]
Json = Annotated[bool, Parameter(help="Print JSON, for programs.")]
Device = Annotated[str, Parameter(help=DEVICE.help, completer=one(completion.values(DEVICE)))]
RunName = Annotated[File, Parameter(metavar="RUN", help="The folder of a run; by default, the newest.")]


def option(axis: Axis) -> tuple[str, object, str]:
    """The field of an option that takes several values of an axis."""
    kind = Annotated[Names, Parameter(help=axis.help, completer=several(completion.values(axis)))]
    return axis.word, kind, ""


OF_AXES: Any = make_dataclass("Options", map(option, AXES[2:-1]), frozen=True)


@Parameter(name="*")
@dataclass(frozen=True)
class Places(OF_AXES):
    """The options that name places of the matrix; each takes names or patterns, with commas between them."""

    device: Device = ""

    def selection(self, **others: str) -> Selection:
        from faultline.cells.selection import Selection

        return Selection.parse(**others, **vars(self))


EVERYWHERE = Places()


@Parameter(name="*")
@dataclass(frozen=True)
class Crew:
    """The options that say where cells run, and how many at a time."""

    workers: Annotated[
        int | None,
        Parameter(validator=at_least(1, "--workers"), help="Cells that run at a time; by default, one for each core."),
    ] = None
    fleet: Annotated[Literal["ray"] | None, Parameter(help="Run on the nodes of a Ray cluster.")] = None
    address: Annotated[
        str, Parameter(help="Where the cluster is (default: the one that runs here, or a new one on this machine).")
    ] = ""

    nodes: Annotated[
        int,
        Parameter(
            validator=at_least(1, "--nodes"), help="Of the cluster, over which the ranks of each cell are spread."
        ),
    ] = 1
    per_gpu: Annotated[
        int,
        Parameter(
            validator=at_least(1, "--per-gpu"), help="Cells that share a GPU at a time; by default, each has its GPUs."
        ),
    ] = 1

    def engine(self) -> Engine:
        from faultline.runs import engines

        if self.fleet and self.per_gpu > 1:
            raise UsageError(
                "--per-gpu is for this machine, and a fleet lends GPUs itself: give one of --per-gpu and --fleet"
            )
        if self.fleet:
            from faultline.fleet.rays import Rays

            return Rays(self.address, self.nodes)
        if self.address or self.nodes > 1:
            raise UsageError(f"{'--address' if self.address else '--nodes'} is of a fleet: add --fleet ray")
        return engines.Pool(self.per_gpu)


HERE = Crew()


@Parameter(name="*")
@dataclass(frozen=True)
class Axes:
    """The options that narrow the matrix."""

    failure: Annotated[
        Names,
        Parameter(help="Failures, such as zero3_dummy_loss or 'zero*'.", completer=several(completion.failures)),
    ] = ""
    variant: Annotated[Names, Parameter(help="Variants, such as broken.", completer=several(completion.variants))] = ""
    places: Places = EVERYWHERE
    cell: Annotated[
        str,
        Parameter(
            metavar="IDS",
            help="Whole cell ids, without any other of these options.",
            completer=several(completion.cells),
        ),
    ] = ""

    def selection(self) -> Selection:
        return self.places.selection(failure=self.failure, variant=self.variant, cell=cells(self.cell))


WHOLE = Axes()
