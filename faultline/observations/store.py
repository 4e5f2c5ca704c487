"""The committed observations: what cells did on each stack, and the errors that they ended with."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from faultline.base.errors import UsageError
from faultline.base.paths import OBSERVATIONS
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.cells.finding import Finding
from faultline.observations.wording import normalised

FOLDER = OBSERVATIONS
STACKS, ERRORS, DIVERGENCES, CELLS = "stacks.jsonl", "errors.jsonl", "divergences.jsonl", "cells"
OTHER = "other-"

_VIEWS: list[functools._lru_cache_wrapper[Any]] = []

T = TypeVar("T")


@dataclass(frozen=True)
class MeasuredStack:
    """Exact versions on which cells were run.

    `name` is that of a file in stacks/ or a month. Stacks without such a name have only their errors recorded.
    `month` is the day whose newest releases these are, or ``today``; `unusable` says why nothing could be run on it.
    """

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    month: str = ""
    unusable: str = ""

    @property
    def named(self) -> bool:
        return not self.name.startswith(OTHER)


@dataclass(frozen=True)
class RecordedError:
    """An error with which cells of a failure ended; `id` is a digest of its normalised text.

    Of an error that today's stack has, the `traceback` is from there.
    """

    id: str
    failure: str
    signature: str
    outcome: str
    text: str
    traceback: str


@dataclass(frozen=True)
class Divergence:
    """What was wrong with the numbers of a cell, by its whole id, on a stack."""

    cell: str
    stack: str
    finding: Finding


class Row(NamedTuple):
    """What a cell did on a stack: the cell's name without its failure, the stack's name, and an error's id if any."""

    cell: str
    stack: str
    outcome: str
    signature: str = ""
    error: str = ""

    @property
    def did(self) -> Did:
        return Did(self.outcome, self.signature)


def error_id(failure: str, outcome: str, text: str) -> str:
    return digest(f"{failure} {outcome} {normalised(text)}")


def digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


@dataclass(frozen=True)
class Observations:
    """All that was recorded: stacks by name, errors by id, rows by cell, and divergences by the cell's id.

    Of several rows of one cell and one stack, the last is the newest run.
    """

    stacks: Mapping[str, MeasuredStack] = field(default_factory=dict)
    errors: Mapping[str, RecordedError] = field(default_factory=dict)
    rows: Mapping[Cell, Sequence[Row]] = field(default_factory=dict)
    divergences: Mapping[str, Divergence] = field(default_factory=dict)


def view(function: Callable[..., T]) -> Callable[..., T]:
    """Remember what a function makes of the files, until these are written."""
    remembered = functools.cache(function)
    _VIEWS.append(remembered)
    return remembered


@view
def stacks() -> Mapping[str, MeasuredStack]:
    """Every stack by its name."""
    return {stack.name: stack for stack in _read(FOLDER / STACKS, MeasuredStack)}


@view
def errors() -> Mapping[str, RecordedError]:
    """Every error by its id, in the order of failures, signatures and texts."""
    return {error.id: error for error in _read(FOLDER / ERRORS, RecordedError)}


@view
def divergences() -> Mapping[str, Divergence]:
    """What was wrong with the numbers of broken cells on today's stack, by the cell's id."""
    return {each.cell: each for each in _read(FOLDER / DIVERGENCES, Divergence)}


@view
def rows(failure: str) -> Mapping[Cell, Sequence[Row]]:
    """What each cell of a failure did."""
    groups = itertools.groupby(_read(_rows_file(failure), Row), key=lambda row: row.cell)
    return {Cell.parse(f"{failure}/{name}"): tuple(group) for name, group in groups}


def failure_names() -> list[str]:
    """The failures of which anything was recorded."""
    return sorted(file.stem for file in (FOLDER / CELLS).glob("*.jsonl"))


def everything() -> Observations:
    by_failure = (rows(failure) for failure in failure_names())
    by_cell = {cell: each for of_failure in by_failure for cell, each in of_failure.items()}
    return Observations(stacks(), errors(), by_cell, divergences())


def write(observations: Observations) -> None:
    """Write all observations again, a line each, sorted."""
    by_failure: dict[str, list[Row]] = {failure: [] for failure in failure_names()}
    for cell, cell_rows in observations.rows.items():
        by_failure.setdefault(cell.failure, []).extend(cell_rows)
    stacks_by_name = sorted(observations.stacks.values(), key=lambda stack: stack.name)
    errors_by_text = sorted(observations.errors.values(), key=_order)
    divergences_by_cell = sorted(observations.divergences.values(), key=lambda each: each.cell)
    _write(FOLDER / STACKS, stacks_by_name)
    _write(FOLDER / ERRORS, errors_by_text)
    _write(FOLDER / DIVERGENCES, divergences_by_cell)
    for failure, every_row in by_failure.items():
        # A stable sort: the runs of one cell on one stack stay in their order.
        every_row.sort(key=lambda row: (row.cell, row.stack))
        _write(_rows_file(failure), [_short(row) for row in every_row])
    forget()


def forget() -> None:
    """Read the files again from now on."""
    for remembered in _VIEWS:
        remembered.cache_clear()


def _order(error: RecordedError) -> tuple[str, str, str, str]:
    return error.failure, error.signature, error.outcome, normalised(error.text)


def _rows_file(failure: str) -> Path:
    return FOLDER / CELLS / f"{failure}.jsonl"


def _read(file: Path, kind: type[T]) -> list[T]:
    """The lines of a file; none if there is no file. Raises UsageError for any other content."""
    try:
        return msgspec.json.Decoder(kind).decode_lines(file.read_bytes())
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise UsageError(f"{file} does not hold observations: {error}") from None


def _write(file: Path, lines: Sequence[object]) -> None:
    if not lines:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    partial.replace(file)


def _short(row: Row) -> list[str]:
    """A row without the empty fields at its end."""
    fields = [*row]
    while not fields[-1]:
        fields.pop()
    return fields
