"""is-safe's judgement: each kind of change is caught, near misses pass, and no change is lost or told twice."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.releases import changes, given_stacks, side_by_side
from faultline.releases.changes import ChangeKind, Comparison, Safety
from tests.support.changes import cells, compared

DID = (
    "trains",
    "raises:no-grad-fn:RuntimeError: element 0 of tensors",
    "raises:other:RuntimeError: Output 0 of Split is a view",
    "raises:other:RuntimeError: Output 7 of Split is a view",
    "raises:other:ValueError: mixed",
    "diverges:differs:w is off by 0.5",
    "diverges:unmoved:w is off by 1",
    "misplaced:reference-model:rank 0 holds all 12 bytes",
    "hangs:no-progress:asleep",
    "crashes:SIGABRT:rank 1 was killed",
    "impossible::needs a GPU",
    "invalid:evidence:no evidence",
    "invalid:evidence+error:the model is not wrapped; ValueError: mixed",
    "invalid:reference:ValueError: mixed (in one process: there is no reference)",
)
TOLD = st.sampled_from(DID)
RUNS = st.lists(st.tuples(TOLD, TOLD), min_size=1, max_size=30)
SAFE, NOT_SAFE, UNKNOWN = Safety.SAFE, Safety.NOT_SAFE, Safety.UNKNOWN
OLD = "raises:reduced-twice:AssertionError: The parameter 3 has already been reduced. Gradient computed twice"


@pytest.mark.parametrize(
    ("before", "after", "kind", "verdict"),
    [
        ("trains", "raises:other:E: x", ChangeKind.REGRESSED, NOT_SAFE),
        ("trains", "diverges:differs:off", ChangeKind.DIVERGES, NOT_SAFE),
        ("hangs:no-progress:asleep", "misplaced:reference-model:whole", ChangeKind.REGRESSED, NOT_SAFE),
        ("raises:other:E: x", "trains", ChangeKind.FIXED, SAFE),
        ("diverges:differs:off", "raises:other:E: x", ChangeKind.OTHER, SAFE),
        ("diverges:differs:off", "diverges:unmoved:off", ChangeKind.OTHER, SAFE),
        ("raises:reduced-twice:E: x", "raises:bucketed-twice:E: x", ChangeKind.OTHER, SAFE),
        ("raises:no-grad-fn:E: x y z", "crashes:SIGSEGV:gone", ChangeKind.OTHER, SAFE),
        (OLD, OLD.replace("reduced-twice", "other").replace("Gradient computed", "It was"), ChangeKind.WORDING, SAFE),
        (OLD.replace("reduced-twice", "other"), OLD.replace("Gradient", "A gradient"), ChangeKind.WORDING, SAFE),
        ("raises:other:E: the old words of it", "raises:other:E: the new words of it", ChangeKind.WORDING, SAFE),
        ("raises:other:E: one thing", "raises:other:E: a quite different matter", ChangeKind.OTHER, SAFE),
        ("trains", "impossible::lacks it", ChangeKind.IMPOSSIBLE, UNKNOWN),
        ("raises:other:E: x", "impossible::lacks it", ChangeKind.IMPOSSIBLE, SAFE),
        ("impossible::lacks it", "trains", ChangeKind.POSSIBLE, SAFE),
        ("impossible::lacks it", "diverges:differs:off", ChangeKind.DIVERGES, NOT_SAFE),
        ("trains", "invalid:evidence:none", ChangeKind.INFRA, UNKNOWN),
        ("invalid:server:died", "trains", ChangeKind.INFRA, UNKNOWN),
        ("trains", "invalid:reference-died:no reference run", ChangeKind.INFRA, UNKNOWN),
        ("trains", "invalid:reference:E: x (in one process)", ChangeKind.LOST, NOT_SAFE),
        ("impossible::lacks it", "invalid:reference:E: x (in one process)", ChangeKind.LOST, NOT_SAFE),
        ("impossible::lacks it", "hangs:no-progress:asleep", ChangeKind.REGRESSED, NOT_SAFE),
        ("impossible::lacks it", "misplaced:reference-model:whole", ChangeKind.REGRESSED, NOT_SAFE),
        ("impossible::lacks it", "raises:other:E: x", ChangeKind.POSSIBLE, SAFE),
        ("invalid:reference:E: x (in one process)", "invalid:reference:F: y (in one process)", ChangeKind.OTHER, SAFE),
        ("invalid:reference:E: x (in one process)", "raises:no-grad-fn:E: y", ChangeKind.OTHER, SAFE),
        ("trains", "invalid:evidence+error:not DeepSpeedEngine; E: x", ChangeKind.REGRESSED, NOT_SAFE),
        ("raises:other:E: y", "invalid:evidence+error:not DeepSpeedEngine; F: x", ChangeKind.OTHER, SAFE),
        ("raises:no-grad-fn:F: y", "invalid:reference:F: y (in one process)", ChangeKind.LOST, NOT_SAFE),
        ("trains", None, ChangeKind.INFRA, UNKNOWN),
        (None, "trains", None, SAFE),
        (None, "raises:other:E: x", ChangeKind.INFRA, UNKNOWN),
        ("trains::1e-6", "trains::2e-6", None, SAFE),
        ("raises:reduced-twice:the parameter 3", "raises:reduced-twice:parameter visual.x is done", None, SAFE),
        ("raises:other:E: 0 of Split at /a/b.py:3", "raises:other:E: 9 of Split at /c/d.py:4", None, SAFE),
        ("diverges:differs:a is off by 0.5", "diverges:differs:b is off by 0.7", None, SAFE),
        ("invalid:evidence:a", "invalid:server:b", None, SAFE),
        ("invalid:evidence+error:no engine; E: 3", "invalid:evidence+error:no engine; E: 4", None, SAFE),
        ("invalid:reference:E: x at /a/b.py:3", "invalid:reference:E: x at /c/d.py:4", None, SAFE),
    ],
)
def test_each_kind_of_change_is_known(before, after, kind, verdict):
    """Breaks when a change gets another name or verdict, or numbers, paths or the first rank count as a change."""
    results = compared(["trains", before], ["trains", after])
    assert [(change.kind, change.cell) for change in results.changes] == ([(kind, cells(2)[1])] if kind else [])
    assert results.verdict is verdict


def test_without_proof_the_reason_is_told_alone():
    """Breaks when the error of the stack that did prove something stands for the other one's."""
    [change] = compared(["trains", "raises:other:E: x"], ["trains", "invalid:evidence:no proof: y"]).changes
    assert change.error == "no proof on the candidate: no proof: y"


def test_what_proves_nothing_is_not_safe():
    """Breaks when a run in which nothing could be measured, or one cell of a hundred, passes for a safe one."""
    for expected in ("invalid:server:died", "impossible::needs a GPU"):
        assert compared([expected] * 3, [expected] * 3).verdict is UNKNOWN
    assert Comparison(unusable="no such release").verdict is UNKNOWN
    assert compared([], []).verdict is UNKNOWN
    assert Comparison(identical=True).verdict is Safety.NOTHING
    assert Comparison().verdict is Comparison(cells=9).verdict is UNKNOWN
    nothing = ["invalid:evidence:none"]
    assert compared([*nothing * 99, "trains"], [*nothing * 99, "trains"]).verdict is UNKNOWN
    assert compared([*nothing * 5, *["trains"] * 5], [*nothing * 5, *["trains"] * 5]).verdict is SAFE, "half is enough"


# By what a user meets, the best first, whatever the code thinks of it; those of one level are another kind of the same.
AT_ONCE = "raises crashes impossible invalid:evidence+error"
GRAVITY = ("trains", AT_ONCE, "invalid:reference", "hangs", "misplaced", "diverges")


def gravity(result):
    """The level of what a cell did; none for what proves nothing or can't be run."""
    return next((level for level, words in enumerate(GRAVITY) if result.startswith(tuple(words.split()))), None)


WORSE = [
    (before, after)
    for before, after in product(DID, DID)
    if None not in (old := gravity(before), new := gravity(after)) and new > old
]


@settings(max_examples=20)
@given(RUNS, st.integers(0, 2))
def test_law_nothing_that_got_worse_is_excused(runs, again):
    """Breaks when a release is SAFE under which one cell does worse than before, whatever it and the others did."""
    befores, afters = zip(*runs, strict=True)
    for before, after in WORSE:
        results = compared([*befores, before], [*afters, after], [(len(runs), before, after)] * again)
        assert results.verdict is not SAFE, f"{before} became {after}"


@given(RUNS, st.sampled_from(["raises:other:E: x", "diverges:differs:off", "hangs:no-progress:asleep"]))
def test_law_every_change_is_in_one_group_and_nothing_outweighs_a_regression(runs, broken):
    """Breaks when a change is lost, told twice or under another kind; when fixes or doubts about other cells hide one
    that trained and doesn't now; or when a stack differs from itself."""
    before, after = zip(*runs, strict=True)
    results = compared(before, after)
    grouped = [change.cell for group in results.groups for change in group.changes]
    assert sorted(cell.id for cell in grouped) == sorted(change.cell.id for change in results.changes)
    assert all({change.kind for change in group.changes} == {group.kind} for group in results.groups)
    order = [list(ChangeKind).index(group.kind) for group in results.groups]
    assert order == sorted(order), "a grave change is told after a lesser one"
    assert compared([*before, "trains"], [*after, broken]).verdict is NOT_SAFE
    trains = ["trains"] * len(runs)
    same = compared([*trains, *before], [*trains, *before])
    assert same.verdict is SAFE and not same.groups


def test_one_cause_is_told_once():
    """Breaks when every failure and strategy has a group of its own for one error."""
    after = [f"raises:other:RuntimeError: Output {n} of Split is a view of /tmp/{n}/x.py" for n in range(40)]
    [group] = compared(["trains"] * 40, after).groups
    assert len(group.changes) == 40 and len({change.cell.failure for change in group.changes}) == 2
    two = compared(["trains"] * 4, [*after[:2], *["raises:other:RuntimeError: no such thing"] * 2])
    assert len(two.groups) == 2, "two causes are told as one"
    assert len(compared(["trains", "raises:no-grad-fn:E: x"], after[:2]).groups) == 2, "what was before is lost"


BROKEN = "raises:other:E: x"


@pytest.mark.parametrize(
    ("first", "again", "kind", "verdict"),
    [
        (("trains", BROKEN), [("trains", BROKEN)], ChangeKind.REGRESSED, NOT_SAFE),
        (("trains", BROKEN), [("trains", "trains")], ChangeKind.INFRA, UNKNOWN),
        (("trains", BROKEN), [("trains", BROKEN), ("trains", "trains")], ChangeKind.INFRA, UNKNOWN),
        (("trains", BROKEN), [(BROKEN, BROKEN)], ChangeKind.INFRA, UNKNOWN),  # once on the one, always on the other
        (("trains", BROKEN), [(BROKEN, BROKEN), ("trains", BROKEN), ("trains", BROKEN)], ChangeKind.INFRA, UNKNOWN),
        (("trains", BROKEN), [(BROKEN, "trains")], ChangeKind.INFRA, SAFE),
        (("trains", "invalid:server:died"), [("trains", "trains")], ChangeKind.INFRA, SAFE),
        (("trains", "invalid:server:died"), [("trains", BROKEN)], ChangeKind.REGRESSED, NOT_SAFE),
        (("trains", "invalid:server:died"), [("trains", "invalid:server:died")], ChangeKind.INFRA, UNKNOWN),
    ],
)
def test_a_change_must_repeat(first, again, kind, verdict):
    """Breaks when a flake is told as a change, or a change is excused as a flake."""
    before, after = first
    results = compared(["trains", before], ["trains", after], [(1, *both) for both in again])
    assert [change.kind for change in results.changes] == [kind] and results.verdict is verdict


def test_what_is_repeated_is_enough_and_not_more():
    """Breaks when sixty cells of one cause run again, or a doubtful cause isn't looked at as a whole."""
    before, after = ["trains"] * 20, [BROKEN] * 20
    results = compared(before, after)
    first = side_by_side.cells_to_repeat(results, {})
    assert len(first) == changes.SAMPLE
    once = {cell.id: 1 for cell in first}
    steady = [(number, "trains", BROKEN) for number in range(20) if cells(20)[number] in first]
    assert not side_by_side.cells_to_repeat(compared(before, after, steady), once)
    flaky = [(number, "trains", "trains") for number, *_ in steady[:1]] + steady[1:]
    doubtful = side_by_side.cells_to_repeat(compared(before, after, flaky), once)
    assert len(doubtful) == 20 - len(first) + 1, "the rest of the cause, and the flaky cell once more"
    often = {cell.id: changes.REPEATS for cell in cells(20)}
    assert not side_by_side.cells_to_repeat(compared(before, after, flaky), often), "repeats have no end"


def test_packages_that_differ_are_all_told():
    """Breaks when a dependency that moved with the candidate goes unmentioned."""
    before, after = {"a": "1", "b": "1", "gone": "2"}, {"a": "2", "b": "1", "new": "3"}
    assert given_stacks.differing(before, after) == [("a", "1", "2"), ("gone", "2", ""), ("new", "", "3")]
    assert given_stacks.differing(before, after, removed=False) == [("a", "1", "2"), ("new", "", "3")]
