"""Shards: every machine computes the same split, nothing is lost in it, and merging says what is missing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base.errors import EXIT_UNEXPECTED, UsageError
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.cells.selection import Selection, select
from faultline.runs import shards, storage
from faultline.runs.oracle import Judgement
from faultline.runs.results import result
from faultline.runs.shards import kind, merge, part, record, recorded, split
from faultline.runs.storage import RunFolder
from faultline.runs.supervisor import Ended
from tests.support import entries

CELLS = select(failures(), Selection())
KINDS = sorted({kind(cell) for cell in CELLS})
STACK = "deepspeed 0.19.8, torch 2.13.0"

some_cells = st.lists(st.sampled_from(CELLS), unique=True, max_size=60)
counts = st.integers(min_value=1, max_value=9)
durations = st.dictionaries(st.sampled_from(KINDS), st.floats(min_value=0, max_value=100))


@given(some_cells, counts, durations)
@settings(deadline=None)
def test_law_shards_are_disjoint_and_together_all_cells(cells, count, seconds):
    parts = split(cells, count, seconds)
    assert len(parts) == count
    together = [cell for mine in parts for cell in mine]
    assert sorted(together, key=cells.index) == cells, "a cell is run twice or by no machine"
    for mine in parts:
        assert mine == [cell for cell in cells if cell in mine], "a shard has another order than the run"


@given(some_cells, counts, durations, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_law_the_split_does_not_depend_on_the_order_of_the_cells(cells, count, seconds, chance):
    shuffled = list(cells)
    chance.shuffle(shuffled)
    first, second = (list(map(set, split(order, count, seconds))) for order in (cells, shuffled))
    assert first == second, "two machines would split the same run in different ways"


@given(some_cells, counts, durations)
@settings(deadline=None)
def test_law_no_shard_is_longer_than_another_by_more_than_one_cell(cells, count, seconds):
    times = {cell: seconds.get(kind(cell), shards.UNKNOWN) for cell in cells}
    loads = [sum(times[cell] for cell in mine) for mine in split(cells, count, seconds)]
    longest = max(times.values(), default=0)
    assert max(loads) - min(loads) <= longest + 1e-6, f"loads {loads} with no cell longer than {longest}"


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_the_default_matrix_is_shared_out_by_name(count):
    parts = [part(CELLS, f"{number}/{count}") for number in range(1, count + 1)]
    assert sorted(cell.id for mine in parts for cell in mine) == sorted(cell.id for cell in CELLS)
    assert len({len(mine) for mine in parts}) <= 2 or recorded(), "shards of equal cells differ in number"


def test_a_machine_that_is_not_needed_gets_nothing():
    assert [len(part(CELLS[:2], f"{number}/3")) for number in (1, 2, 3)] == [1, 1, 0]


@given(st.text(max_size=8) | st.from_regex(r"-?\d{1,2}/-?\d{1,2}", fullmatch=True))
@settings(deadline=None)
def test_law_what_is_no_part_is_refused(text):
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        part(CELLS[:3], text)
    else:
        with pytest.raises(UsageError, match=r"--shard takes I/N with 1 <= I <= N"):
            part(CELLS[:3], text)


def test_kinds_part_what_takes_unlike_times():
    assert kind(Cell("grpo_lora_no_grad", "grpo-broken", "ddp")) == "grpo_lora_no_grad/grpo/ddp/w2"
    assert kind(Cell("grpo_lora_no_grad", "broken", "ddp")) == "grpo_lora_no_grad/scenario/ddp/w2"
    assert kind(Cell("forgotten", "broken", "ddp", world_size=4)) == "forgotten/scenario/ddp/w4"


def test_recorded_durations_are_means_by_kind(tmp_path):
    file = tmp_path / "durations.json"
    assert recorded(file) == {}
    same = [cell for cell in CELLS if kind(cell) == kind(CELLS[0])][:2]
    record([entries.entry(cell, seconds=seconds) for cell, seconds in zip(same, (1.0, 2.0), strict=True)], file)
    assert recorded(file) == {kind(CELLS[0]): 1.5}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Makes the results folder of a shard from ids; what is merged goes below tmp_path as well."""
    monkeypatch.setattr(storage.new_run, "__defaults__", (tmp_path / "results",))
    made = []

    def make(cells, shard="", have=None, stack=STACK, selection=None):
        path = tmp_path / f"shard{len(made)}"
        made.append(path)
        path.mkdir()
        run = RunFolder(path)
        run.describe(selection=selection or {}, shard=shard, cells=cells, **({"stack": stack} if stack else {}))
        done = [Cell.parse(name) for name in (cells if have is None else have)]
        judged = Judgement(Outcome.TRAINS)
        entries = [result(cell, judged, Ended([]), stack, Expectation(), "expected") for cell in done]
        run.cells.write_text("".join(json.dumps(entry.as_json()) + "\n" for entry in entries))
        return run

    return make


def test_merging_all_shards_gives_the_whole(folder):
    ids = [cell.id for cell in CELLS[:9]]
    runs = [folder(ids[number::3], f"{number + 1}/3") for number in range(3)]
    merged, absent, missing = merge(runs[::-1])
    assert absent == [] and missing == []
    assert {entry.cell.id for entry in merged.results()} == set(ids), "a merged run lost cells"
    facts = merged.facts()
    assert facts["finished"] and facts["stack"] == STACK and set(facts["cells"]) == set(ids)


def test_merging_names_cells_and_shards_that_are_missing(folder):
    ids = [cell.id for cell in CELLS[:8]]
    runs = [folder(ids[:2], "1/4"), folder(ids[2:4], "2/4", have=ids[2:3]), folder(ids[6:], "4/4")]
    merged, absent, missing = merge(runs)
    assert absent == ["3/4"] and missing == [ids[3]], "what is missing is not told"
    assert {entry.cell.id for entry in merged.results()} == {*ids[:3], *ids[6:]}


def test_what_is_missing_is_counted_and_named_in_lines(folder, asked):
    """Breaks when a whole shard counts as one cell, when only one of several is named, or a name moves the cursor."""
    ids = [cell.id for cell in CELLS[:8]]
    runs = [folder(ids, "2/4", have=ids[:3]), folder(["\x1b[2Jx"], "3/4", have=[])]
    code, out, _ = asked("maintain", "merge", *(str(run.path) for run in runs))
    assert code == EXIT_UNEXPECTED
    assert out.splitlines()[-2:] == [
        "missing: every cell of shards 1/4, 4/4",
        f"missing: 6 of the cells that the runs were asked for: {', '.join(ids[3:6])} and 3 more",
    ]
    runs = [folder(ids, "1/2"), folder(["\x1b[2Jx"], "2/2", have=[])]
    _, out, _ = asked("maintain", "merge", *(str(run.path) for run in runs))
    assert out.splitlines()[-1] == "missing: 1 of the cells that the runs were asked for: x"


def test_a_shard_that_is_none_is_refused(folder):
    with pytest.raises(UsageError, match=r"^run.json has no shard such as 1/4, but '\\x1b\[2J/b'$"):
        merge([folder([CELLS[0].id], "\x1b[2J/b")])


def test_a_merge_without_one_shard_is_not_finished(folder):
    merged, absent, missing = merge([folder([CELLS[0].id], "1/2")])
    assert absent == ["2/2"] and missing == []
    assert not merged.facts()["finished"], "`bless` would take a part for the whole"


def test_parts_of_different_splits_are_no_whole(folder):
    """Breaks when half of the cells are in neither shard, and nobody says so."""
    with pytest.raises(UsageError, match="parts of different splits: 1/2, 2/4"):
        merge([folder([CELLS[0].id], "1/2"), folder([CELLS[1].id], "2/4")])


def test_a_shard_that_ran_nothing_has_no_stack_and_is_merged_all_the_same(folder):
    assert merge([folder([CELLS[0].id], "1/2"), folder([], "2/2", stack="")])[1:] == ([], [])


@pytest.mark.parametrize(
    ("change", "message"),
    [({"stack": "torch 2.4.0"}, "different stacks"), ({"selection": {"failure": ["x"]}}, "different cells")],
)
def test_what_does_not_belong_together_is_refused(folder, tmp_path, change, message):
    runs = [folder([CELLS[0].id], "1/2"), folder([CELLS[1].id], "2/2", **change)]
    with pytest.raises(UsageError, match=message):
        merge(runs)
    assert not (tmp_path / "results").exists(), "a merge that was refused left a run behind"


@given(st.sets(st.integers(min_value=1, max_value=6)), st.integers(min_value=1, max_value=6))
def test_law_absent_shards_are_those_not_named(have, count):
    have = {number for number in have if number <= count}
    absent = shards.absent_shards([f"{number}/{count}" for number in have])
    wanted = [f"{number}/{count}" for number in range(1, count + 1) if number not in have] if have else []
    assert absent == wanted
