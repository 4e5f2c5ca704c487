"""What cells did, without a run: today by the rules that runs were held against, before today by recorded runs."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from packaging.version import Version

from faultline import strategies
from faultline.base import packages
from faultline.base.packages import STACK, TODAY, stack_name
from faultline.base.paths import ROOT
from faultline.base.text import one_line
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.cells import claims, expected, selection
from faultline.cells.cell import Cell, default_world, own_values
from faultline.cells.claims import Outcomes
from faultline.cells.selection import Selection
from faultline.observations import ranges, store
from faultline.observations.store import MeasuredStack, RecordedError, Row
from faultline.observations.wording import same_error
from faultline.stacks import requests

BEGINNING = 200  # characters by which an error is recognised
ERRORS = ("raises", "crashes", "hangs")

Place = tuple[str, str]
"""A strategy and a checkpointing mode."""


def place(cell: Cell) -> Place:
    return cell.strategy, cell.checkpointing


@functools.cache
def pinned() -> dict[str, str]:
    """The versions of today's stack, as requirements.txt pins them."""
    pins = packages.pinned(ROOT / "requirements.txt")
    return {name: pins[name] for name in STACK if name in pins}


@functools.cache
def pins(stack: str) -> dict[str, str]:
    """The versions of a file in stacks/, with today's torch if it pins none."""
    versions = packages.pinned(requests.named()[stack])
    return {name: versions.get(name, pinned()[name]) for name in sorted(STACK)}


def named_as(versions: Mapping[str, str]) -> str:
    """The file of stacks/ that has exactly these versions, whatever build; empty if none has."""
    return _names().get(stack_name(versions), "")


@functools.cache
def _names() -> Mapping[str, str]:
    return {stack_name(pins(name)): name for name in requests.named()}


@store.view
def outcomes(failure: Failure, stack: str = TODAY) -> Outcomes:
    """What every cell of the default matrix does on a file of stacks/: as it last ran there, else by the rules.

    Today's runs are what the rules were made from.
    """
    expected_there = by_rules(failure, stack)
    if stack == TODAY:
        return expected_there
    ran = by_stack(failure.name).get(stack, {})
    return {cell: ran.get(cell, did) for cell, did in expected_there.items()}


@store.view
def by_stack(failure: str) -> Mapping[str, Outcomes]:
    """What the cells of a failure did on each stack that is recorded; of several runs, the newest."""
    did_there: dict[str, dict[Cell, Did]] = {}
    for cell, rows in store.rows(failure).items():
        for row in rows:
            did_there.setdefault(row.stack, {})[cell] = row.did
    return did_there


@functools.cache
def by_rules(failure: Failure, stack: str) -> Outcomes:
    """What the rules say of every cell of the default matrix on a file of stacks/."""
    return ruled(failure, pinned() | packages.pinned(requests.named()[stack]))


def ruled(failure: Failure, versions: Mapping[str, str]) -> Outcomes:
    """What every cell of the default matrix does with these versions, by the rules."""
    rules = [rule for rule in expected.rules(failure) if expected.holds(rule, versions)]
    results = {}
    for cell in selection.select({failure.name: failure}, Selection(failure=(failure.name,))):
        expectation = expected.expect(rules, cell, versions)
        results[cell] = Did(expectation.outcome, *expectation.signatures[:1])
    return results


def possible(failure: Failure, cell: Cell) -> bool:
    """Whether a cell can be had today."""
    return outcomes(failure)[cell].outcome not in claims.NOT_RUN


def shown_on(failure: Failure) -> str:
    """The stack that shows a failure: today's if it does, else the one on which it was reported."""
    if failure.reported and not claims.showing(failure, outcomes(failure)):
        return failure.reported.stack
    return TODAY


def months() -> list[MeasuredStack]:
    """The stacks of the timeline, the oldest first, today's last."""
    dated = (stack for stack in store.stacks().values() if stack.month)
    return sorted(dated, key=lambda stack: (stack.month == TODAY, stack.month))


@store.view
def monthly(failure: str) -> Mapping[Cell, Sequence[Row | None]]:
    """What the cells did that ran on every month: the newest row of each month, None if nothing could be run on it."""
    wanted = months()
    usable = {stack.name for stack in wanted if not stack.unusable}
    newest = {cell: {row.stack: row for row in rows} for cell, rows in store.rows(failure).items()}
    return {
        cell: [there.get(stack.name) for stack in wanted] for cell, there in newest.items() if usable <= there.keys()
    }


def silent(failure: Failure, signatures: Collection[str]) -> set[Place]:
    """The places in which broken cells diverged in one of some ways, on any stack."""
    wanted = {Did("diverges", signature) for signature in signatures}
    return silent_today(failure, signatures) | {
        place(cell)
        for cell, rows in store.rows(failure.name).items()
        if cell.broken and any(row.did in wanted for row in rows)
    }


def silent_today(failure: Failure, signatures: Collection[str]) -> set[Place]:
    """The places in which broken cells diverge in one of some ways on today's stack."""
    wanted = {Did("diverges", signature) for signature in signatures}
    return {place(cell) for cell, did in outcomes(failure).items() if cell.broken and did in wanted}


@store.view
def recorded(failure: str, signature: str) -> Mapping[Cell, Sequence[Row]]:
    """The runs of a failure's cells that ended with an error of this signature, by cell."""
    by_cell = {
        cell: [row for row in rows if row.outcome in ERRORS and row.signature == signature]
        for cell, rows in store.rows(failure).items()
    }
    return {cell: rows for cell, rows in by_cell.items() if rows}


@store.view
def places(failure: Failure, signature: str) -> frozenset[Place]:
    """Every place in which a run, on any stack, ended with this signature; none if that takes another device."""
    cells = {cell for cell, did in outcomes(failure).items() if did[1] == signature}
    cells |= recorded(failure.name, signature).keys()
    for rule in expected.rules(failure):
        if signature in rule.signature and rule.device:  # a GPU's, which the default matrix leaves out
            asked = Selection(failure=(failure.name,), device=rule.device[0])
            there = selection.select({failure.name: failure}, asked)
            cells |= {cell for cell in there if expected.about(rule, cell)}
    return frozenset(map(place, cells))


@store.view
def modes(failure: Failure, signature: str) -> frozenset[str]:
    """The checkpointing modes in which the variants were run that end with a signature, whatever they did there."""
    today = outcomes(failure)
    variants = {cell.variant for cell, did in today.items() if did[1] == signature}
    variants |= {cell.variant for cell in recorded(failure.name, signature)}
    run = {cell.checkpointing for cell in today if cell.variant in variants}
    return frozenset(run | {mode for _, mode in places(failure, signature)})


def shown_by_itself(failure: Failure, signature: str) -> bool:
    """Whether the failure as reported ends with this signature, and not only one of its remedies."""
    return any(did[1] == signature and cell.broken for cell, did in outcomes(failure).items())


@functools.lru_cache(maxsize=4096)
def beginning(error: str) -> str:
    """The beginning of an error, its type without the module: what comes later differs from case to case."""
    kind, colon, message = one_line(error)[:BEGINNING].partition(": ")
    return kind.rpartition(".")[2] + colon + message


def runs(error: RecordedError) -> list[tuple[Cell, Row]]:
    """The recorded runs that ended with an error, by stack and cell."""
    every = [(cell, row) for cell, rows in store.rows(error.failure).items() for row in rows if row.error == error.id]
    return sorted(every, key=lambda run: (releases(run[1]), run[0].id))


def releases(row: Row) -> str:
    """The versions of a row's stack in one line."""
    return stack_name(store.stacks()[row.stack].versions)


def named_stacks() -> dict[str, MeasuredStack]:
    """The files of stacks/ on which broken cells were run, without today's."""
    return {name: stack for name, stack in store.stacks().items() if name in requests.named() and name != TODAY}


@functools.cache
def oldest(package: str) -> Version:
    """The oldest release of a package that was run."""
    every = [stack.versions[package] for stack in (*named_stacks().values(), *months())]
    return min(map(ranges.public, (*every, pinned()[package])))


def runs_with_error(text: str) -> list[tuple[Cell, Row]]:
    """The recorded runs that ended with an error in any wording; the newest stack last, today's behind all."""
    begins = beginning(text)
    alike = [each for each in store.errors().values() if same_error(beginning(each.text), begins)]
    every = [run for error in alike for run in runs(error)]
    ages = {name: _age(store.stacks()[name]) for name in {row.stack for _, row in every}}
    return sorted(every, key=lambda run: ages[run[1].stack])


def _age(stack: MeasuredStack) -> tuple[bool, list[Version]]:
    order = ("transformers", *STACK)
    return stack.versions == pinned(), [Version(stack.versions.get(name, "0")) for name in order]


def cell_for(failure: Failure, signature: str, where: Collection[Place]) -> tuple[Cell | None, str]:
    """A cell that shows a signature, in these places if one does, and the month that it takes: empty for today's."""
    today = {cell: "" for cell, did in outcomes(failure).items() if did[1] == signature}
    dated = {
        cell: next(stack.month for stack, row in zip(months(), rows, strict=True) if row in shown)
        for cell, rows in monthly(failure.name).items()
        if (shown := [row for row in rows if row and row.did == Did("raises", signature)])
    }
    reported = failure.reported.strategy if failure.reported else ""

    def order(entry: tuple[Cell, str]) -> tuple[bool, ...]:
        cell, month = entry
        unlikely = cell.strategy != reported
        return place(cell) not in where, "broken" not in cell.variant, bool(month), unlikely, cell != usual(cell)

    return min((today | dated | today).items(), key=order, default=(None, ""))  # in the order of the matrix


def example(failure: Failure) -> Cell | None:
    """A cell that shows a failure: on today's stack, or else the one in which it was reported."""
    cell = next(iter(quick(claims.showing(failure, outcomes(failure)))), None)
    if cell or not failure.reported:
        return cell
    return Cell(failure.name, **failure.reported.place)


def usual(cell: Cell) -> Cell:
    """The same cell in fp32, at the default world size and as its variant runs by default."""
    places = own_values(failures().get(cell.failure), cell.variant)
    return replace(cell, precision="fp32", world_size=default_world(cell), **places)


def quick(cells: Collection[Cell]) -> list[Cell]:
    """One cell of each variant among these: where its failure shows as it was reported, if there is such a place."""
    asked = [failures()[name] for name in {cell.failure for cell in cells}]
    shows = {cell for failure in asked for cell in claims.showing(failure, outcomes(failure, shown_on(failure)))}
    spots = {(cell.failure, *place(cell)) for cell in shows}

    def fitting(cell: Cell) -> tuple[bool, ...]:
        failure = failures()[cell.failure]
        shown = cell in shows if cell.broken else (cell.failure, *place(cell)) in spots
        reported = failure.reported and failure.reported.strategy
        _, _, named = failure.report.partition("/")
        in_report = fnmatchcase(cell.name.partition("/")[2], named or "*")
        distributed = strategies.distributed(cell.strategy)
        best = (shown, distributed, cell.strategy == reported, in_report, cell == usual(cell))
        return tuple(not each for each in best)

    chosen: dict[tuple[str, str], Cell] = {}
    for cell in sorted(cells, key=fitting):
        chosen.setdefault((cell.failure, cell.variant), cell)
    return [cell for cell in cells if chosen[cell.failure, cell.variant] == cell]
