"""Which cells is-safe runs, and what it says of those that it leaves out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.releases.reach import Reach


@dataclass(frozen=True)
class How:
    """Which cells run, and whether the first regression ends it.

    Of those that execute nothing of a package that differs, only a sample runs (`involved`), or `every` one; or of all
    those that execute nothing that changed (`affected`).
    """

    runs: Literal["involved", "affected", "every"] = "involved"
    fail_fast: bool = False


USUAL = How()


def named(selection: Selection) -> bool:
    """Whether cells are asked for one by one."""
    return bool(selection.variant or selection.cells)


def default(cells: Sequence[Cell]) -> list[Cell]:
    """Of the cells of a matrix those in a trainer, and of the others the broken variants, which have no remedy."""
    known = {(name, v.name): v for name, failure in failures().items() for v in failure.variants}
    variants = ((cell, known[cell.failure, cell.variant]) for cell in cells)
    return [cell for cell, variant in variants if variant.trainer or variant.remedy == "broken"]


def some(covers: Reach, cells: Sequence[Cell], how: How) -> Sequence[Cell]:
    """Those of the cells that run."""
    if how.runs == "affected":
        return covers.narrowed(cells)
    return cells if how.runs == "every" else covers.involved(cells)


def narrowing(
    covers: Reach, asked: Sequence[Cell], cells: Sequence[Cell], how: How, packages: Sequence[str]
) -> list[str]:
    """What did not run, and why."""
    if how.runs != "affected":
        if len(cells) == len(asked):
            return []
        apart, ran = len(covers.apart & {*asked}), len(covers.apart & {*cells})
        return [
            f"{count(apart, 'cell')} execute nothing of {' or '.join(packages)}, and so can't change: {ran} of them ran"
            " as a sample, and --all runs all"
        ]
    if not covers.touched:
        return ["--affected: what the cells execute isn't known, so all of them ran"]
    affected = len(covers.affected(cells))
    others = f"{len(cells) - affected} of the {len(asked) - affected} others are a sample"
    return [f"--affected: {count(affected, 'cell')} execute what changed, and {others}"]


def early(left: int) -> list[str]:
    return [f"--fail-fast: {count(left, 'cell')} did not run"] if left else []
