"""Variations of a cell's run: against one process on all rows, or with other units of FSDP."""

from dataclasses import replace

from faultline.base.errors import TargetFailed
from faultline.base.text import one_line
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell
from faultline.cells.finding import split_factor
from faultline.check import cell as checked_cell
from faultline.check.target import CheckTarget
from faultline.ranks.job import ROOT
from faultline.runs.results import Beside, Result
from faultline.runs.runner import References
from faultline.runs.supervisor import RankServer

SHARES, ROWS, UNITS, BLOCKS = "shares", "rows", "root only", "blocks"
BESIDE = {
    SHARES: "the mean of the ranks' losses in one process",
    ROWS: "one process on all rows",
    UNITS: "with the root as FSDP's only unit (--units root)",
    BLOCKS: "with each block as a unit of FSDP",
}
"""The variations in words."""
NOTHING = 1e-3  # of a loss: so much is rounding


def other_run(result: Result, what: str) -> Beside | None:
    """Another run of a cell, if there was one."""
    return next((each for each in result.checked.beside if each.what == what), None)


def agreed_references(result: Result) -> tuple[str, ...]:
    """The references that a cell which trains agrees with: the mean of the ranks' losses, one process on all rows, or
    both, which are one where the loss is a mean over rows."""
    others = {each.what: each.outcome for each in result.checked.beside if each.what in (SHARES, ROWS)}
    return tuple(what for what in (SHARES, ROWS) if others.get(what, Outcome.TRAINS) == Outcome.TRAINS)


def agrees_with_neither(result: Result) -> str:
    """That a cell agrees with no single process, and the factor to one of them, if there is one; empty where it agrees
    with one, was held against one alone, or where nothing but the ranks' buffers is unlike."""
    rows = other_run(result, ROWS)
    apart = result.signature == Signature.BUFFERS_APART
    if apart or not rows or not rows.outcome == result.outcome == Outcome.DIVERGES:
        return ""
    factors = {what: split_factor(text)[0] for what, text in ((SHARES, result.detail), (ROWS, rows.detail))}
    known = [f": {factor}, against {BESIDE[what]}" for what, factor in factors.items() if factor]
    return f"agrees neither with {BESIDE[SHARES]}, nor with {BESIDE[ROWS]}{''.join(known[:1])}"


def with_other_run(result: Result, what: str, other: Result | str) -> Result:
    """A result with what another run of its cell did, or why there was none."""
    if isinstance(other, str):
        run = Beside(what, "", "", other)
    else:
        run = Beside(what, other.outcome, other.signature, other.detail)
    return replace(result, checked=replace(result.checked, beside=(*result.checked.beside, run)))


def run(target: CheckTarget, server: RankServer, references: References, cell: Cell, inject: str = "") -> Result:
    """One cell's result, held against one process.

    Where a model calls collectives, its loss isn't a mean over rows, or rows leave something in buffers, that is also
    one process on all rows: a cell trains if it agrees with either. Under FSDP it runs with the root as the only unit
    too, or with blocks if that was asked for, to see if the units decide. `inject` and what is raised are those of
    `cell.run`.
    """
    if cell.world_size == 1 or target.trainer or cell.life != "straight":
        return checked_cell.run(target, server, references, cell, inject)
    result = against_both(target, server, references, cell, inject)
    if not cell.strategy.startswith("fsdp") or result.outcome == Outcome.INVALID:
        return result
    root = target.units != (ROOT,)
    other = against_both(replace(target, units=(ROOT,) if root else ()), server, references, cell, inject)
    same = result.outcome == other.outcome or other.outcome == Outcome.INVALID
    return result if same else with_other_run(result, UNITS if root else BLOCKS, other)


def against_both(
    target: CheckTarget, server: RankServer, references: References, cell: Cell, inject: str = ""
) -> Result:
    """One cell's result, against both kinds of a single process if they differ."""
    result = checked_cell.run(target, server, references, cell, inject)
    if result.outcome not in (Outcome.TRAINS, Outcome.DIVERGES):
        return result
    facts = result.checked.facts
    if result.checked.collectives or facts.whole_apart > NOTHING or facts.unlike_buffers:
        try:
            other = checked_cell.run(replace(target, together=True), server, references, cell, inject)
        except TargetFailed as failed:
            return with_other_run(result, ROWS, one_line(failed))
        if result.outcome == Outcome.DIVERGES and other.outcome == Outcome.TRAINS:
            whole = replace(other, checked=replace(other.checked, facts=result.checked.facts))
            return with_other_run(whole, SHARES, result)
        result = with_other_run(result, ROWS, other)
    return result
