"""What a verdict covers: which functions differ, which of them cells execute, and which cells run first or at all."""

import json
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline import strategies
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.ranks import executed
from faultline.releases import (
    code_changes,
    coverage,
    is_safe,
    is_safe_view,
    sampling,
    side_by_side,
)
from faultline.releases.changes import Safety
from faultline.releases.code_changes import BODY, Unit
from faultline.releases.coverage import Reach
from faultline.releases.sampling import USUAL, How
from faultline.stacks.environments import Environment
from tests.support.changes import cells, compared, entry
from tests.support.program import python

MODULE = """
'''A module.'''
LIMIT = 3

def plain(a, b=1):
    '''What it does.'''
    def inner():
        return [x for x in range(b)]
    return inner() or (lambda: a)()

class Engine:
    '''A class.'''
    size = 1

    def step(self):
        return self.size  # a comment

    @property
    def name(self):
        return "a"

    @name.setter
    def name(self, value):
        pass

    async def later(self):
        class Local:
            def deep(self):
                return 1
        return Local().deep()

if LIMIT:
    def either():
        return 1
else:
    def either():
        return 2
"""
NAMES = {
    *(BODY, "plain", "plain.<locals>.inner", "Engine.step", "Engine.name", "Engine.later", "either"),
    "Engine.later.<locals>.Local.deep",
}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("A module.", "Another text.", set()),
        ("A class.", "Another text.", set()),
        ("What it does.", "Another text.", set()),
        ("b=1", "b = 1", set()),
        ("LIMIT = 3", "LIMIT = 4", {BODY}),
        ("size = 1", "size = 2", {BODY}),
        ("b=1", "b=2", {"plain"}),
        ("range(b)", "range(a)", {"plain.<locals>.inner"}),
        ("lambda: a", "lambda: b", {"plain"}),
        ("return self.size", "return 2 * self.size", {"Engine.step"}),
        ("        pass", "        self.value = value", {"Engine.name"}),
        ("@property", "@cached", {"Engine.name"}),
        ("                return 1", "                return 2", {"Engine.later.<locals>.Local.deep"}),
        ("    def either():\n        return 2", "    def either():\n        return 3", {"either"}),
        ("def step", "def move", {"Engine.step", "Engine.move"}),
        ("def plain", "def", {*NAMES}),
    ],
)
def test_what_differs_is_named_and_nothing_else(old, new, expected):
    """Breaks when a comment counts as a change, or a change is taken for that of another function, or for none."""
    differing = code_changes.names_that_differ(MODULE.encode(), MODULE.replace(old, new).encode())
    assert old in MODULE and differing == expected | ({BODY} if new == "def" else set())


def test_what_is_no_module_is_one_unit():
    """Breaks when a file that Python can't read has no digest, or ends the comparison."""
    for source, other in ((b"def (:", b"def [:"), (b"\x00", b"\x00\x00"), (b"", b"\x00")):
        assert code_changes.names_that_differ(source, other) == {BODY} and not code_changes.names_that_differ(
            source, source
        )


@given(st.permutations(["a", "b", "c"]), st.integers(0, 2))
def test_a_function_is_the_same_wherever_it_stands(order, which):
    """Breaks when functions that were moved within a file are called changed."""
    texts = {name: f"def {name}(x):\n    return x + {number}\n\n" for number, name in enumerate("abc")}
    whole, moved = ("".join(texts[name] for name in names).encode() for names in ("abc", order))
    assert not code_changes.names_that_differ(whole, moved)
    changed = {**texts, order[which]: f"def {order[which]}(x):\n    return 0\n\n"}
    assert code_changes.names_that_differ(moved, "".join(changed.values()).encode()) == {order[which]}


PROGRAM = """
import json, sys, threading
sys.path.insert(0, sys.argv[1])
from package import used
from faultline.ranks import executed
ran = {}
with executed.recorded(ran):
    from package import late
    used.plain(0)
    used.Engine().step()
    thread = threading.Thread(target=used.either)
    thread.start()
    thread.join()
print(json.dumps({file: names for file, names in ran.items() if file.startswith("package")}))
assert sys.gettrace() is None
"""


def test_what_ran_has_the_names_of_what_changed(tmp_path):
    """Breaks when the names of functions that ran aren't those of the trees, or imports and threads are missed."""
    package = tmp_path / "site-packages" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in ("used", "late", "never"):
        (package / f"{name}.py").write_text(textwrap.dedent(MODULE))
    done = python("-c", PROGRAM, package.parent)
    assert done.returncode == 0, done.stderr

    ran = json.loads(done.stdout)
    assert {*ran["package/used.py"]} == {BODY, "plain", "plain.<locals>.inner", "Engine.step", "either"}
    assert {*ran["package/late.py"]} == {BODY}, "its functions did not run, though the body of its class did"
    assert "package/never.py" not in ran
    assert {*ran["package/used.py"]} <= NAMES


CLASS = next(each for each in compile("class A: x = 1", "", "exec").co_consts if hasattr(each, "co_flags"))
FUNCTION = (lambda: 1).__code__


@pytest.mark.parametrize(
    ("code", "name", "expected"),
    [
        (CLASS, "f.<locals>.A.B", "f"),
        (FUNCTION, "A.f.<locals>.<listcomp>.<lambda>", "A.f"),
        (FUNCTION, "<lambda>", BODY),
        (FUNCTION, "f.<locals>.g.<locals>.<genexpr>", "f.<locals>.g"),
    ],
)
def test_code_without_a_name_is_that_of_the_function_around_it(code, name, expected):
    """Breaks when a lambda that ran is nothing of the release, or a module that is only imported seems to run."""
    assert executed.code_name(code.replace(co_qualname=name)) == expected


CELLS = cells(40)
UNITS = [Unit("trl", "trl/a.py", "f"), Unit("trl", "trl/a.py", BODY), Unit("trl", "trl/b.py", "g<h>")]
TOUCHED = st.dictionaries(st.sampled_from(CELLS), st.integers(0, 5))


@given(TOUCHED)
def test_the_order_loses_no_cell_and_affected_ones_come_first(touched):
    """Breaks when a cell isn't run, or one that executes nothing that changed runs before one that does."""
    covers = Reach(frozenset(UNITS), {}, touched)
    ordered = covers.in_order(CELLS)
    assert sorted(each.id for each in ordered) == sorted(each.id for each in CELLS)
    flags = [bool(touched.get(cell)) for cell in ordered]
    assert flags == sorted(flags, reverse=True)
    affected = [cell for cell in ordered if touched.get(cell)]
    kinds = {(cell.failure, cell.strategy[:4]) for cell in affected}
    first = {(cell.failure, cell.strategy[:4]) for cell in affected[: len(kinds)]}
    assert first == kinds, "one of each failure and family comes before the next of one"


@given(st.dictionaries(st.sampled_from(CELLS), st.frozensets(st.sampled_from(UNITS), min_size=1), min_size=1))
def test_the_first_cells_execute_all_that_changed(executes):
    """Breaks when what only few cells execute is reached late, and with it what a release breaks there."""
    covers = Reach(frozenset(UNITS), executes, {cell: len(names) for cell, names in executes.items()})
    ordered = covers.in_order(CELLS)
    first = [executes.get(cell, frozenset()) for cell in ordered[: len(UNITS)]]
    assert frozenset().union(*first) == frozenset().union(*executes.values())


def test_what_the_candidate_alone_executes_counts_and_changes_no_order(monkeypatch):
    """Breaks when a new function counts as not reached, or orders cells by what ran after them."""
    covers = Reach(frozenset(UNITS), {CELLS[3]: frozenset(UNITS[:1])}, {CELLS[3]: 1}, near=CELLS[3:])
    asked = []

    def of(environment, cells, folders, workers):
        asked.extend(cells)
        return {cells[0]: frozenset({("trl/b.py", "g<h>"), ("trl/other.py", "f")})}

    monkeypatch.setattr(coverage.executed, "of", of)
    both = covers.on(Environment("python", ""), 2)
    assert both.missed == [UNITS[1]] and covers.missed == sorted(UNITS[1:])
    assert both.in_order(CELLS) == covers.in_order(CELLS) and both.affected(CELLS) == covers.affected(CELLS)
    assert asked == CELLS[3 : 3 + coverage.SEVERAL]
    del asked[:]
    none = covers.within(CELLS[:3]).on(Environment("python", ""), 2)
    assert none.reached == frozenset() and not asked, "none of them ran"


@pytest.mark.parametrize(
    ("packages", "apart", "alike"),
    [
        (["trl"], {0}, {1, 3, 4}),
        (["trl", "peft"], set(), {0, 1, 3, 4}),
        (["trl", "deepspeed"], {0}, {1, 3}),
        (["peft"], {1, 2, 3, 4}, {0}),
        (["trl", "numpy"], set(), set()),
        (["torch", "trl"], set(), set()),
    ],
)
def test_only_what_is_seen_can_be_known_not_to_change(monkeypatch, packages, apart, alike):
    """Breaks when code that isn't Python's counts as not executed, an import as executed, or strategies as one."""
    zero = Cell("zero3_dummy_loss", "broken", "zero3")
    asked = [Cell("zero3_dummy_loss", "broken", "ddp"), Cell("zero3_dummy_loss", "broken", "fsdp2")]
    asked += [zero, replace(zero, precision="bf16"), replace(zero, strategy="zero3-small")]
    ran = [{("peft/a.py", "g"), ("trl/a.py", BODY)}, {("trl/a.py", "other")}, {("trl/b.py", "f")}]
    recorded = {cell: frozenset(names) for cell, names in zip(asked, ran, strict=False)}
    monkeypatch.setattr(coverage.code_changes, "packages_of", lambda python: Path(python))
    monkeypatch.setattr(coverage.code_changes, "changed_units", lambda *_: frozenset({Unit("trl", "trl/b.py", "f")}))
    monkeypatch.setattr(coverage.executed, "of", lambda *_: recorded)
    stand_for = lambda _, cells: {cell: cell if cell in recorded else zero for cell in cells}  # noqa: E731
    monkeypatch.setattr(coverage.executed, "representatives", stand_for)
    plain = coverage.plainest(asked, packages)
    covers = coverage.measure_coverage((Environment("python", ""),) * 2, packages, asked, plain, 1)
    assert covers.apart == {asked[each] for each in apart} and covers.alike == {asked[each] for each in alike}


def test_a_cell_touches_what_it_executes():
    """Breaks when an import alone makes a cell affected: every cell imports every package."""
    assert coverage.touches(UNITS, frozenset({("trl/a.py", "f")})) == 2
    assert coverage.touches(UNITS, frozenset({("trl/a.py", "other")})) == 1
    assert coverage.touches(UNITS, frozenset({("trl/a.py", BODY), ("trl/b.py", BODY)})) == 0


def test_the_answer_says_what_it_covers():
    """Breaks when SAFE doesn't say of how much, or a function's name becomes HTML in a comment."""
    covers = Reach(frozenset(UNITS), {CELLS[0]: frozenset(UNITS[:2]), CELLS[1]: frozenset()}, {}, ("numpy",))
    lines = covers.lines()
    assert lines[0] == "the cells execute 1 of 2 changed functions and 1 of 1 changed module body of trl"
    assert "not reached: trl/b.py:g<h>" in lines and "numpy" in lines[-1]
    given = is_safe_view.UpgradeAnswer("a", "b", [], compared(["trains"], ["trains"]), reach=covers, scope=lines)
    assert "`not reached: trl/b.py:g<h>`" in is_safe_view.markdown(given)
    numbers = {"functions": [2, 1], "bodies": [1, 1], "missed": ["trl/b.py:g<h>"]}
    assert is_safe_view.data(given)["reach"] == {"trl": numbers}
    assert covers.within(CELLS[1:]).lines()[0].startswith("the cells execute 0 of 2 "), "of cells that did not run"
    assert Reach().lines() == []


def test_the_first_regression_is_said_at_once(capsys):
    """Breaks when somebody waits for all cells to learn of the first, or a cell that failed before is taken for it."""
    texts = ["raises:other:E: x", "trains", "trains"]
    watch = side_by_side.RegressionWatch(False)
    for number, text in enumerate(texts):  # whichever side of a cell comes first
        did = [(0, text), (1, "raises:other:E: x")]
        for side, does in did if number % 2 else reversed(did):
            watch.see(side, entry(CELLS[number], does))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and all(text in lines[0] for text in (CELLS[1].id, "regressed", "E: x"))
    assert not watch.enough


# Which cells run: all that a release may change, and of the others a sample.


ONE = frozenset(UNITS[:1])
SOME = st.sets(st.sampled_from(CELLS)).map(frozenset)


def share(cells, every):
    return -(-len(cells) // every)


@given(SOME, SOME)
def test_what_may_change_runs_and_of_the_others_a_sample(one, other):
    """Breaks when a cell doesn't run that a release may change, or none of those that show that it can't."""
    apart, alike = one, other - one
    some = sampling.cells_to_run(Reach(ONE, apart=apart, alike=alike), CELLS, USUAL)
    assert {*CELLS} - apart - alike <= {*some} and some == [cell for cell in CELLS if cell in {*some}]
    assert len(apart & {*some}) == share(apart, sampling.TENTH) and len(alike & {*some}) == share(alike, sampling.THIRD)
    some = sampling.cells_to_run(Reach(ONE, {}, {cell: int(cell in one) for cell in CELLS}), CELLS, How("affected"))
    assert one <= {*some} and len({*some} - one) == share({*CELLS} - one, sampling.TENTH)
    assert sampling.cells_to_run(Reach(), CELLS, How("affected", most=5)) == CELLS, (
        "nothing is known, so nothing is left out"
    )


@pytest.mark.slow
def test_one_cell_of_each_failure_stands_for_all():
    """Breaks when what runs ahead of a recording lacks a failure or an engine, or takes minutes itself."""
    every = sampling.usual_cells(select(failures(), Selection.parse()))
    first = sampling.one_of_each(every)
    assert {cell.failure for cell in first} == {cell.failure for cell in every} and {*first} <= {*every}
    assert len(first) <= 2 * len({cell.failure for cell in every})
    engines = Counter(strategies.engine(cell.strategy) for cell in first)
    assert {*engines} >= {"ddp", "zero2", "zero3", "fsdp1", "fsdp2"} and max(engines.values()) < len(first) / 2
    assert sampling.one_of_each([]) == []


def test_few_cells_cover_what_very_many_have():
    """Breaks when --affected takes half an hour for one function, or a value of an axis that many have is left out."""
    every = select(failures(), Selection.parse(failure="zero*,ddp*"))
    few = sampling.covering(every)
    assert len(few) < len(every) / 2

    def have(cells, axes):
        return {tuple(getattr(cell, axis) for axis in axes.split()) for cell in cells}

    strategy = [f"strategy {axis}" for axis in ("checkpointing", "precision", "world_size")]
    for axes in ("failure variant checkpointing life", *strategy):
        assert have(few, axes) == have(every, axes), axes
    engines = [{(cell.failure, cell.strategy.partition("-")[0]) for cell in cells} for cells in (few, every)]
    assert engines[0] == engines[1]
    covers = Reach(ONE, {}, dict.fromkeys(every, 1))
    assert sampling.cells_to_run(covers, every, How("affected", most=len(every))) == every
    some = sampling.cells_to_run(covers, every, How("affected", most=len(every) - 1))
    assert {*few} <= {*some} and len(some) == len(few) + share({*every} - {*few}, sampling.TENTH)


def test_what_did_not_run_is_said():
    """Breaks when an answer is about a part of the cells, and hides which, or says it of all of them."""
    apart, alike = frozenset(CELLS[:20]), frozenset(CELLS[20:32])
    covers = Reach(ONE, apart=apart, alike=alike)
    ran = sampling.cells_to_run(covers, CELLS, USUAL)
    assert sampling.narrowing(covers, CELLS, ran, USUAL, ["peft", "trl"]) == [
        "20 cells execute nothing of peft or trl: 2 of them ran as a sample",
        "12 cells execute nothing that changed, or what another precision, world size or setting does:"
        " 4 of them ran as a sample",
        "--all runs all",
    ]
    assert sampling.narrowing(covers, CELLS, CELLS, USUAL, ["trl"]) == []
    covers = Reach(ONE, {}, {cell: int(cell not in apart) for cell in CELLS})
    for ran, of_each in ((CELLS[18:], ""), (CELLS[18:24], ": 4 of them ran, some of each variant and strategy")):
        [line] = sampling.narrowing(covers, CELLS, ran, How("affected"), ["trl"])
        assert line == f"--affected: 20 cells execute what changed{of_each}, and 2 of the 20 others are a sample"


def test_what_fewer_cells_would_have_said_is_known_from_the_whole():
    """Breaks when the replay calls a bump seen, and none of its cells runs by default or with --affected."""
    whole = compared(["trains"] * 40, ["trains"] * 39 + ["raises:other:E: x"])
    assert whole.verdict is Safety.NOT_SAFE
    every = cells(40)
    for touched, verdict in (({every[39]: 1}, Safety.NOT_SAFE), ({every[0]: 1}, Safety.SAFE)):
        given = is_safe_view.UpgradeAnswer("a", "b", [], whole, reach=Reach(ONE, {}, touched))
        narrowed = is_safe.narrowed(given, every, How("affected"))
        assert narrowed.verdict is verdict and narrowed.cells < 10
    for apart, verdict in ((every[:39], Safety.NOT_SAFE), (every, Safety.SAFE)):
        given = is_safe_view.UpgradeAnswer("a", "b", [], whole, reach=Reach(ONE, apart=frozenset(apart)))
        narrowed = is_safe.narrowed(given, every, USUAL)
        assert narrowed.verdict is verdict and narrowed.cells <= 5
