"""How new runs change the observations and the timeline in them: what the same cells did on the stack of each month."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from faultline.base.packages import TODAY, stack_name
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.observations import measured, store
from faultline.observations.store import OTHER, Divergence, MeasuredStack, Observations, RecordedError, Row, digest

UNINSTALLABLE = Did("uninstallable")
"""Instead of an outcome, where nothing could be run on a stack."""


@dataclass(frozen=True)
class Timeline:
    """What each cell did on each month's stack, in the order of the stacks."""

    stacks: Sequence[MeasuredStack]
    cells: Mapping[Cell, Sequence[Did]]


def committed() -> Timeline:
    """The timeline of the recorded observations."""
    cells = {
        cell: [row.did if row else UNINSTALLABLE for row in rows]
        for failure in store.failure_names()
        for cell, rows in measured.monthly(failure).items()
    }
    return Timeline(measured.months(), cells)


NONE: Mapping[str, Divergence] = MappingProxyType({})
QUIET = ("trains", "diverges", "misplaced")  # outcomes without an error


def with_runs(
    before: Observations,
    stacks: Iterable[MeasuredStack],
    errors: Iterable[RecordedError],
    runs: Iterable[tuple[Cell, Row]],
    divergences: Mapping[str, Divergence] = NONE,
) -> Observations:
    """Observations with the runs of cells, in their order; what they say of stacks counts, and of errors on today's."""
    rows, today = {**before.rows}, set[str]()
    for cell, row in runs:
        rows[cell] = with_row(rows.get(cell, ()), row)
        today |= {row.error} if row.stack == TODAY else set()
    every_stack = {**before.stacks, **{stack.name: stack for stack in stacks}}
    new = {error.id: error for error in errors}
    every_error = new | {**before.errors} | {id_: error for id_, error in new.items() if id_ in today}
    return with_current_names(Observations(every_stack, every_error, rows, {**before.divergences, **divergences}))


def with_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """What a cell did, with a new run: it takes the place of earlier runs on its stack, but of those with other errors.

    A run without an error takes the place of all: the cell doesn't end with these errors any more.
    """
    there = [each for each in rows if each.stack == row.stack]
    if not row.error:  # the same outcome may have been recorded with its error
        row = next((each for each in there if each.error and each.did == row.did), row)
    errors = [] if row.outcome in QUIET else [each for each in there if each.error and each.error != row.error]
    return [*(each for each in rows if each.stack != row.stack), *errors, row]


def with_timeline(before: Observations, timeline: Timeline) -> Observations:
    """Observations whose months are those of a timeline."""
    without = {name: replace(stack, month="") for name, stack in before.stacks.items()}
    by_versions = {stack_name(stack.versions): stack for stack in without.values()}
    stacks = [replace(stack, name=by_versions.get(stack_name(stack.versions), stack).name) for stack in timeline.stacks]
    runs = [
        (cell, Row(cell.name, stack.name, *did))
        for cell, outcomes in timeline.cells.items()
        for stack, did in zip(stacks, outcomes, strict=True)
        if did != UNINSTALLABLE
    ]
    return with_runs(replace(before, stacks=without), stacks, (), runs)


def with_today(before: Observations) -> Observations:
    """Observations whose timeline ends with the stack that is pinned now, instead of the one that was."""
    stacks = {name: replace(each, month="") if each.month == TODAY else each for name, each in before.stacks.items()}
    return replace(before, stacks={**stacks, TODAY: replace(stacks[TODAY], month=TODAY)})


def with_current_names(observations: Observations) -> Observations:
    """Observations with the names that stacks and errors have by now; what nothing refers to any more is left out.

    A stack has another name if its file in stacks/ has changed, an error another signature if its failure's patterns
    have. Cells that the matrix has no longer keep nothing but their errors.
    """
    catalogue = failures()
    recorded = {cell.failure for cell in observations.rows}
    recorded |= {each.cell.partition("/")[0] for each in observations.divergences.values()}
    cells = {cell for name in recorded & catalogue.keys() for cell in measured.outcomes(catalogue[name])}
    stacks = {name: with_name(stack) for name, stack in observations.stacks.items()}
    errors = {id_: _current_error(error) for id_, error in observations.errors.items() if error.failure in catalogue}
    rows = {
        cell: tuple(
            sorted((_current(row, stacks, errors) for row in each if row.error or cell in cells), key=lambda r: r.stack)
        )
        for cell, each in observations.rows.items()
        if cell.failure in catalogue
    }
    used = [row for each in rows.values() for row in each]
    ids = {cell.id for cell in cells}
    wrong = [replace(e, stack=stacks[e.stack].name) for e in observations.divergences.values() if e.cell in ids]
    ran, ended = {row.stack for row in used} | {each.stack for each in wrong}, {row.error for row in used}
    return Observations(
        {stack.name: stack for stack in stacks.values() if stack.name in ran or stack.month},
        {id_: error for id_, error in errors.items() if id_ in ended},
        {cell: each for cell, each in rows.items() if each},
        {each.cell: each for each in wrong},
    )


def with_name(stack: MeasuredStack) -> MeasuredStack:
    """A stack with the name of its file in stacks/, else of its month, else one without a meaning."""
    month = stack.month if stack.month != TODAY else ""
    name = measured.named_as(stack.versions) or month or OTHER + digest(stack_name(stack.versions))
    return replace(stack, name=name)


def _current_error(error: RecordedError) -> RecordedError:
    signature = failures()[error.failure].signature(error.text)
    return replace(error, signature=signature) if error.outcome == "raises" else error


def _current(row: Row, stacks: dict[str, MeasuredStack], errors: dict[str, RecordedError]) -> Row:
    signature = errors[row.error].signature if row.error else row.signature
    return row._replace(stack=stacks[row.stack].name, signature=signature)
