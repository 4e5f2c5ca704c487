"""Which cells is-safe runs: all that a release may change, and of the others a sample."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, select
from faultline.releases import is_safe, is_safe_view, scope
from faultline.releases.changes import Safety
from faultline.releases.reach import Reach
from faultline.releases.scope import USUAL, How
from faultline.releases.units import Unit
from tests.support.changes import cells, compared

UNIT = Unit("trl", "trl/a.py", "f")
CELLS = cells(40)
SOME = st.sets(st.sampled_from(CELLS)).map(frozenset)


def share(cells, every):
    return -(-len(cells) // every)


@given(SOME)
def test_the_affected_cells_and_a_sample_of_the_others_run(affected):
    """Breaks when --affected leaves out an affected cell, or all of the others."""
    covers = Reach(frozenset([UNIT]), {}, {cell: int(cell in affected) for cell in CELLS})
    some = scope.some(covers, CELLS, How("affected"))
    assert affected <= {*some} and len({*some} - affected) == share({*CELLS} - affected, scope.TENTH)
    assert scope.some(Reach(), CELLS, How("affected", most=5)) == CELLS, "nothing is known, so nothing is left out"


@given(SOME, SOME)
def test_what_can_hardly_change_is_a_sample(apart, alike):
    """Breaks when a cell doesn't run that a release may change, or none of those that show that it can't."""
    alike -= apart
    covers = Reach(frozenset([UNIT]), apart=apart, alike=alike)
    some = scope.some(covers, CELLS, USUAL)
    assert {*CELLS} - apart - alike <= {*some} and some == [cell for cell in CELLS if cell in {*some}]
    assert len(apart & {*some}) == share(apart, scope.TENTH) and len(alike & {*some}) == share(alike, scope.THIRD)


def test_one_cell_of_each_failure_stands_for_all():
    """Breaks when what runs ahead of a recording lacks a failure or an engine, or takes minutes itself."""
    every = scope.default(select(failures(), Selection.parse()))
    first = scope.one_of_each(every)
    assert {cell.failure for cell in first} == {cell.failure for cell in every} and {*first} <= {*every}
    assert len(first) <= 2 * len({cell.failure for cell in every})
    engines = Counter(strategies.engine(cell.strategy) for cell in first)
    assert {*engines} >= {"ddp", "zero2", "zero3", "fsdp1", "fsdp2"} and max(engines.values()) < len(first) / 2
    assert scope.one_of_each([]) == []


def test_few_cells_cover_what_very_many_have():
    """Breaks when --affected takes half an hour for a function that all cells execute, or no cell has a variant, mode,
    strategy, precision or world size that many have."""
    every = select(failures(), Selection.parse(failure="zero*,ddp*"))
    few = scope.covering(every)
    assert len(few) < len(every) / 2

    def have(cells, *axes):
        return {tuple(getattr(cell, axis) for axis in axes) for cell in cells}

    for axes in (
        ("failure", "variant", "checkpointing", "life"),
        ("strategy", "checkpointing"),
        ("strategy", "precision"),
        ("strategy", "world_size"),
    ):
        assert have(few, *axes) == have(every, *axes)
    engines = [{(cell.failure, cell.strategy.partition("-")[0]) for cell in cells} for cells in (few, every)]
    assert engines[0] == engines[1]
    covers = Reach(frozenset([UNIT]), {}, dict.fromkeys(every, 1))
    assert scope.some(covers, every, How("affected", most=len(every))) == every
    some = scope.some(covers, every, How("affected", most=len(every) - 1))
    assert {*few} <= {*some} and len(some) == len(few) + share({*every} - {*few}, scope.TENTH)


def test_what_did_not_run_is_said():
    """Breaks when an answer is about a part of the cells, and hides which, or says it of all of them."""
    apart, alike = frozenset(CELLS[:20]), frozenset(CELLS[20:32])
    covers = Reach(frozenset([UNIT]), apart=apart, alike=alike)
    ran = scope.some(covers, CELLS, USUAL)
    assert scope.narrowing(covers, CELLS, ran, USUAL, ["peft", "trl"]) == [
        "20 cells execute nothing of peft or trl: 2 of them ran as a sample",
        "12 cells execute nothing that changed, or what another one does in another precision or world size:"
        " 4 of them ran as a sample",
        "--all runs all",
    ]
    assert scope.narrowing(covers, CELLS, CELLS, USUAL, ["trl"]) == []
    covers = Reach(frozenset([UNIT]), {}, {cell: int(cell not in apart) for cell in CELLS})
    for ran, of_each in ((CELLS[18:], ""), (CELLS[18:24], ": 4 of them ran, some of each variant and strategy")):
        [line] = scope.narrowing(covers, CELLS, ran, How("affected"), ["trl"])
        assert line == f"--affected: 20 cells execute what changed{of_each}, and 2 of the 20 others are a sample"


def test_what_fewer_cells_would_have_said_is_known_from_the_whole():
    """Breaks when the replay calls a bump seen, and none of its cells runs by default or with --affected."""
    whole = compared(["trains"] * 40, ["trains"] * 39 + ["raises:other:E: x"])
    assert whole.verdict is Safety.NOT_SAFE
    every = cells(40)
    for touched, verdict in (({every[39]: 1}, Safety.NOT_SAFE), ({every[0]: 1}, Safety.SAFE)):
        given = is_safe_view.Answer("a", "b", [], whole, reach=Reach(frozenset([UNIT]), {}, touched))
        narrowed = is_safe.narrowed(given, every, How("affected"))
        assert narrowed.verdict is verdict and narrowed.cells < 10
    for apart, verdict in ((every[:39], Safety.NOT_SAFE), (every, Safety.SAFE)):
        given = is_safe_view.Answer("a", "b", [], whole, reach=Reach(frozenset([UNIT]), apart=frozenset(apart)))
        narrowed = is_safe.narrowed(given, every, USUAL)
        assert narrowed.verdict is verdict and narrowed.cells <= 5
