"""Which cells is-safe runs, and what it says of those that it leaves out."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from faultline import strategies
from faultline.base.text import count
from faultline.catalogue import Variant
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.releases.coverage import Reach

TENTH, THIRD = 10, 3  # of so many cells, one is a sample
MOST = 400  # affected cells that all run


@dataclass(frozen=True)
class How:
    """Which cells run, and whether the first regression ends it.

    Of those that a release can hardly change, only a sample runs (`usual`), or `every` one; or of all those that
    execute nothing that changed (`affected`), and where more than `most` do, those run that cover them.
    """

    runs: Literal["usual", "affected", "every"] = "usual"
    fail_fast: bool = False
    most: int = MOST


USUAL = How()


def names_cells(selection: Selection) -> bool:
    """Whether cells are asked for one by one."""
    return bool(selection.variant or selection.cells)


def usual_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Of the cells of a matrix those in a trainer, and of the others the broken variants, which have no remedy."""
    variants = ((cell, _variant(cell)) for cell in cells)
    return [cell for cell, variant in variants if variant.trainer or variant.remedy == "broken"]


def _variant(cell: Cell) -> Variant:
    return failures()[cell.failure].variant(cell.variant)


def one_of_each(cells: Sequence[Cell]) -> list[Cell]:
    """The first cell of each failure, alone and in a trainer, with the engines in turn."""
    groups: dict[tuple[str, bool], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.failure, bool(_variant(cell).trainer)), []).append(cell)
    turns: Counter[str] = Counter()
    first = []
    for alike in groups.values():
        first.append(min(alike, key=lambda cell: turns[strategies.engine(cell.strategy)]))
        turns[strategies.engine(first[-1].strategy)] += 1
    return first


def cells_to_run(covers: Reach, cells: Sequence[Cell], how: How) -> Sequence[Cell]:
    """Those of the cells that run, in their order."""
    if how.runs == "every" or (how.runs == "affected" and not covers.touched):
        return cells
    if how.runs == "affected":
        affected = covers.affected(cells)
        runs = {*(covering(affected) if len(affected) > how.most else affected)}
        runs |= _sample(cells, {*cells} - runs, TENTH)
    else:
        runs = {*cells} - covers.apart - covers.alike
        runs |= _sample(cells, covers.apart, TENTH) | _sample(cells, covers.alike, THIRD)
    return [cell for cell in cells if cell in runs]


def at_most(cells: Sequence[Cell], plain: Collection[Cell], how: How) -> Sequence[Cell]:
    """The cells that run if each of them executes what changed, as nothing is known of that yet; `plain` are the
    plainest of them."""
    covers = Reach(alike=frozenset(cells).difference(plain))
    return cells_to_run(covers, cells, how)


def _sample(cells: Sequence[Cell], of: Collection[Cell], every: int) -> set[Cell]:
    """Every so many of some cells, in the order of all: the first of each kind, and some of all."""
    return {*[cell for cell in cells if cell in of][::every]}


def covering(cells: Sequence[Cell]) -> list[Cell]:
    """Few cells that have between them what all have: each variant in each mode and life, each failure under each
    engine and ZeRO stage, and each strategy with each mode, precision and world size."""
    had: set[tuple[object, ...]] = set()
    few = []
    for cell in cells:
        engine = strategies.engine(cell.strategy)
        has: set[tuple[object, ...]] = {
            ("variant", cell.failure, cell.variant, cell.checkpointing, *cell.extras),
            ("failure", cell.failure, engine),
            *((cell.strategy, value) for value in (cell.checkpointing, cell.precision, cell.world_size)),
        }
        if not has <= had:
            had |= has
            few.append(cell)
    return few


def narrowing(
    covers: Reach, asked: Sequence[Cell], cells: Sequence[Cell], how: How, packages: Sequence[str]
) -> list[str]:
    """What did not run, and why."""
    if how.runs == "affected":
        return [f"--affected: {_affected(covers, asked, cells)}"]
    if len(cells) == len(asked):
        return []
    left_out = (
        (covers.apart, f"execute nothing of {' or '.join(packages)}"),
        (covers.alike, "execute nothing that changed, or what another precision, world size or setting does"),
    )
    lines = []
    for which, why in left_out:
        if whole := len(which & {*asked}):
            lines.append(f"{count(whole, 'cell')} {why}: {len(which & {*cells})} of them ran as a sample")
    return [*lines, "--all runs all"] if lines else []


def _affected(covers: Reach, asked: Sequence[Cell], cells: Sequence[Cell]) -> str:
    if not covers.touched:
        return "what the cells execute isn't known, so all of them ran"
    affected, ran = (len(covers.affected(some)) for some in (asked, cells))
    of_each = f": {ran} of them ran, some of each variant and strategy" if ran < affected else ""
    others = f"{len(cells) - ran} of the {len(asked) - affected} others are a sample"
    return f"{count(affected, 'cell')} execute what changed{of_each}, and {others}"


def early_end(left: int) -> list[str]:
    return [f"--fail-fast: {count(left, 'cell')} did not run"] if left else []
