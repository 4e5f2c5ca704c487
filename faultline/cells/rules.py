"""The combinations of the axes that can't exist, and those that the default matrix leaves out, each with the reason."""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from faultline import strategies
from faultline.base.axes import OPTIONAL, Axis
from faultline.base.text import listing, matches
from faultline.catalogue import Failure, Variant
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import WORLD_SIZES, Cell, default_world, every_cell

BUFFERS = (Signature.BUFFERS_APART, Signature.BUFFERS_DIFFER)


@dataclass(frozen=True)
class Exclusion:
    """A reason to leave cells out, and whether it holds for a cell; naming an axis of `lifted_by` lifts the rule."""

    reason: str
    leaves_out: Callable[[Cell, Variant], bool]
    lifted_by: tuple[str, ...] = ()


def _several_processes_in_one(cell: Cell, variant: Variant) -> bool:
    return cell.world_size != 1 and not strategies.distributed(cell.strategy)


def _too_few_ranks(cell: Cell, variant: Variant) -> bool:
    return cell.world_size < strategies.least_ranks(cell.strategy)


def _runs(variant: Variant, strategy: str) -> bool:
    return matches(strategy, variant.strategies)


def _other_strategy(cell: Cell, variant: Variant) -> bool:
    return not _runs(variant, cell.strategy)


def _other_mode(cell: Cell, variant: Variant) -> bool:
    return not matches(cell.checkpointing, variant.checkpointing or ("*",))


def _bf16(cell: Cell, variant: Variant) -> bool:
    usual = variant.remedy == "broken" and cell.strategy in strategies.usual_names()
    return cell.precision == "bf16" and not (variant.bf16 or usual)


def _bf16_in_another_world(cell: Cell, variant: Variant) -> bool:
    return cell.precision == "bf16" and cell.world_size != default_world(cell)


def _other_world(cell: Cell, variant: Variant) -> bool:
    mechanism = variant.remedy == "broken" and not variant.trainer
    return cell.world_size != default_world(cell) and not (mechanism and cell.checkpointing != "non-reentrant")


def _mechanism_only(cell: Cell, variant: Variant) -> bool:
    mechanism = variant.remedy == "broken" and not variant.trainer and cell.checkpointing != "non-reentrant"
    return strategies.mechanism_only(cell.strategy) and not mechanism and not _is_named(cell, variant)


def _named_only(cell: Cell, variant: Variant) -> bool:
    return cell.strategy in strategies.family(cell.strategy).named_only and not _is_named(cell, variant)


def _is_named(cell: Cell, variant: Variant) -> bool:
    return cell.strategy in variant.strategies


def _other_world_elsewhere(cell: Cell, variant: Variant) -> bool:
    usual = strategies.one_rank_names() if cell.world_size == 1 else strategies.usual_names()
    return cell.world_size != default_world(cell) and cell.strategy not in usual


def _too_many_ranks(cell: Cell, variant: Variant) -> bool:
    return cell.saved_by > strategies.ROWS


def _never_resized(cell: Cell, variant: Variant) -> bool:
    return cell.life == "resized" and not strategies.family(cell.strategy).resizes


def _not_asked_for(axis: Axis, cell: Cell, variant: Variant) -> bool:
    if getattr(cell, axis.name) == getattr(variant, axis.name, axis.default):
        return False
    return not variant.also or not matches(cell.name.partition("/")[2], variant.also)


def _resumed_in_bf16(cell: Cell, variant: Variant) -> bool:
    return cell.life != "straight" and cell.precision == "bf16"


def _resumed_in_another_world(cell: Cell, variant: Variant) -> bool:
    return cell.life != "straight" and cell.world_size != default_world(cell)


# These cells are never run, whatever is asked for.
IMPOSSIBLE = (
    Exclusion("the single strategy is one process, so its world size is 1", _several_processes_in_one),
    Exclusion("a strategy needs as many ranks as its name says: two to shard over, four for two axes", _too_few_ranks),
    Exclusion("the variant names the strategies that it is about", _other_strategy),
    Exclusion("the engine doesn't promise to load what another number of ranks has saved", _never_resized),
    Exclusion("a resized life begins with twice as many ranks, and the global batch has four rows", _too_many_ranks),
)


@functools.cache
def not_by_default() -> tuple[Exclusion, ...]:
    """The rules of the default matrix: naming an axis brings its cells back."""
    usual, one_rank = strategies.usual_names(), strategies.one_rank_names()
    others = [str(size) for size in WORLD_SIZES if size != 2]
    four_ranks = [name for name in usual if strategies.distributed(name)]
    named = [name for name in strategies.names() if name in strategies.family(name).named_only]
    few = [name for name in strategies.names() if strategies.mechanism_only(name)]
    return (
        Exclusion(
            "the variant names the checkpointing modes in which it runs by default", _other_mode, ("checkpointing",)
        ),
        Exclusion(
            f"bf16 runs for broken variants under {listing(usual)}, and where a variant asks for it",
            _bf16,
            ("precision",),
        ),
        Exclusion("bf16 runs at the default world size", _bf16_in_another_world, ("precision", "world_size")),
        Exclusion(
            f"world sizes {listing(others)} run for broken variants at scenario level, without checkpointing and with"
            " reentrant",
            _other_world,
            ("world_size",),
        ),
        Exclusion(
            f"world size {listing(others[1:])} runs under {listing(four_ranks)}, and world size 1 under"
            f" {listing(one_rank)}",
            _other_world_elsewhere,
            ("world_size",),
        ),
        Exclusion(
            f"unless strategies are named, {listing(few)} run for broken variants at scenario level, without"
            " checkpointing and with reentrant, and for variants that name them",
            _mechanism_only,
            ("strategy", "world_size"),
        ),
        Exclusion(
            f"{listing(named)} run for variants that name them: those with a mixture of experts",
            _named_only,
            ("strategy", "world_size"),
        ),
        *(Exclusion(axis.rule, functools.partial(_not_asked_for, axis), (axis.name,)) for axis in OPTIONAL),
        Exclusion("training is resumed in fp32", _resumed_in_bf16, ("life", "precision")),
        Exclusion("training is resumed at the default world size", _resumed_in_another_world, ("life", "world_size")),
    )


def every_rule() -> tuple[Exclusion, ...]:
    """All rules, in the order in which the first that holds is the reason."""
    return (*IMPOSSIBLE, *not_by_default())


def exportable(cell: Cell, signature: str) -> bool:
    """Whether there may be a file of a cell by itself, of which the signature is known.

    None resumes with ranks of another number or loads a model in shards, as yet; and none compares buffers.
    """
    loads = strategies.family(cell.strategy).load_model
    return cell.life != "resized" and signature not in BUFFERS and not loads


def possible(cell: Cell, variant: Variant) -> bool:
    """Whether a cell can exist."""
    return not any(rule.leaves_out(cell, variant) for rule in IMPOSSIBLE)


def possible_cells(
    failure: Failure, device: str, among: Mapping[str, Collection[Any]] | None = None
) -> Iterator[tuple[Cell, Variant]]:
    """A failure's cells that can exist, in the order of `every_cell`; of axes in `among`, with these values alone."""
    every = every_cell({failure.name: failure}, device, _runs, among)
    return ((cell, variant) for cell, variant in every if possible(cell, variant))


def usual_values(failure: Failure, named: Collection[str]) -> dict[str, list[Any]]:
    """Of each optional axis that isn't named, the values that cells of the default matrix may have."""
    also = [part for variant in failure.variants for place in variant.also for part in place.split("/")]
    usual = {axis: [getattr(each, axis.name, axis.default) for each in failure.variants] for axis in OPTIONAL}
    return {
        axis.name: [value for value in axis.values if matches(value, (*usual[axis], *also))]
        for axis in OPTIONAL
        if axis.name not in named
    }
