"""The records of history.toml: where a failure was reported, which releases began and fixed it, in which places."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from faultline.base.axes import AXES

PLACE = [axis.name for axis in AXES[1:-1] if not axis.optional]


def axes(place: str) -> dict[str, str]:
    """The pattern of each axis that a place names; a missing part means any value. Raises ValueError.

    A fifth part, such as `w2`, names the number of ranks.
    """
    parts = place.split("/") if place else []
    if len(parts) > len(PLACE) or "" in parts:
        raise ValueError(f"a place is variant/strategy/checkpointing/precision, not {place!r}")
    return {
        axis: part.removeprefix("w") if axis == "world_size" else part for axis, part in zip(PLACE, parts, strict=False)
    }


@dataclass(frozen=True)
class Reported:
    """The failure as it was reported: a stack of stacks/, and the place in the matrix, on two ranks.

    `note` says what of the report this place can't show without a GPU.
    `good` is the stack of the first release that has it no more, or the last that hasn't it yet, which runs beside it.
    """

    stack: str
    cell: str
    note: str = ""
    good: str = ""

    def __post_init__(self) -> None:
        if not {"variant", "strategy"} <= axes(self.cell).keys():
            raise ValueError(f"a report is about a variant and a strategy, not {self.cell!r}")

    @property
    def variant(self) -> str:
        return axes(self.cell)["variant"]

    @property
    def strategy(self) -> str:
        return axes(self.cell)["strategy"]

    @property
    def place(self) -> Mapping[str, Any]:
        """Its variant, strategy, checkpointing mode and precision, by the names of these axes."""
        return {axis.name: axes(self.cell).get(axis.name, axis.default) for axis in AXES[1:5]}


@dataclass(frozen=True, eq=False)
class Change:
    """The first release that shows a failure, or the first that doesn't any more, in the cells of a place.

    `measured_by` is the command that found it.
    """

    cells: str
    package: str
    version: str
    measured_by: str

    def __post_init__(self) -> None:
        axes(self.cells)

    @property
    def or_newer(self) -> str:
        """Its release and those after it, as an upgrade that is advised."""
        return f"{self.package} {self.version} or newer"

    @property
    def where(self) -> Mapping[str, str]:
        return axes(self.cells)


@dataclass(frozen=True)
class Fault:
    """The line of a library that is at fault where no error leads to it: `text` stands there in that version.

    `file` is as it is imported, such as ``trl/trainer/dpo_trainer.py``.
    """

    file: str
    line: int
    version: str
    text: str

    @property
    def package(self) -> str:
        return self.file.partition("/")[0]


@dataclass(frozen=True)
class History:
    """All of history.toml.

    `records` are the links, the first report first; `report` is the place that the upstream report shows, and `fault`
    the line that it blames.
    """

    records: tuple[str, ...] = ()
    reported: Reported | None = None
    began: tuple[Change, ...] = ()
    fixed: tuple[Change, ...] = ()
    report: str = ""
    fault: Fault | None = None

    def __post_init__(self) -> None:
        axes(self.report)
