"""How long cells take: a run says so before it starts, and every machine computes the same shards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import EXIT_UNEXPECTED, UsageError
from faultline.base.packages import stack_name
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.matrix import command
from faultline.matrix.command import _merged as merge
from faultline.matrix.command import split
from faultline.runs import estimates, storage
from faultline.runs.estimates import START, about, estimate, kind, record, recorded, seconds_of, wall_seconds
from faultline.runs.storage import RunFolder, RunInfo
from tests.support import entries

CELLS = select(failures(), Selection())
KINDS = sorted({kind(cell) for cell in CELLS})
VERSIONS = {"deepspeed": "0.19.8", "torch": "2.13.0"}
STACK = stack_name(VERSIONS)

some_cells = st.lists(st.sampled_from(CELLS), unique=True, max_size=60)
counts = st.integers(min_value=1, max_value=9)
durations = st.dictionaries(st.sampled_from(KINDS), st.floats(min_value=0, max_value=100))


@given(some_cells, counts, durations, st.randoms(use_true_random=False))
def test_law_shards_are_all_cells_and_of_one_length_on_every_machine(cells, count, seconds, chance):
    parts = split(cells, count, seconds)
    assert len(parts) == count
    together = [cell for shard in parts for cell in shard]
    assert sorted(together, key=cells.index) == cells, "a cell is run twice or by no machine"
    for shard in parts:
        assert shard == [cell for cell in cells if cell in shard], "a shard has another order than the run"
    shuffled = [*cells]
    chance.shuffle(shuffled)
    assert [*map(set, split(shuffled, count, seconds))] == [*map(set, parts)], "two machines would split it otherwise"
    times = {cell: seconds.get(kind(cell), estimates.UNKNOWN) for cell in cells}
    loads = [sum(times[cell] for cell in shard) for shard in parts]
    longest = max(times.values(), default=0)
    assert max(loads) - min(loads) <= longest + 1e-6, f"loads {loads} with no cell longer than {longest}"


@given(st.text(max_size=8) | st.from_regex(r"-?\d{1,2}/-?\d{1,2}", fullmatch=True))
def test_law_what_is_no_part_is_refused(text):
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        command.shard(CELLS[:3], text)
    else:
        with pytest.raises(UsageError, match=r"--shard takes I/N with 1 <= I <= N"):
            command.shard(CELLS[:3], text)


def test_kinds_part_what_takes_unlike_times_and_have_their_means(tmp_path):
    assert kind(Cell("grpo_lora_no_grad", "grpo-broken", "ddp")) == "grpo_lora_no_grad/grpo/ddp/w2"
    assert kind(Cell("grpo_lora_no_grad", "broken", "ddp")) == "grpo_lora_no_grad/scenario/ddp/w2"
    assert kind(Cell("forgotten", "broken", "ddp", world_size=4)) == "forgotten/scenario/ddp/w4"
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

    def make(cells, whole, have=None, stack=STACK):
        path = tmp_path / f"shard{len(made)}"
        made.append(path)
        path.mkdir()
        run = RunFolder(path)
        run.describe(cells=tuple(cells), whole=tuple(whole), stack=stack)
        writer = storage.Writer(run)
        writer.add(*(entries.entry(Cell.parse(name), stack=VERSIONS) for name in (cells if have is None else have)))
        writer.close()
        return run

    return make


def test_what_is_missing_is_counted_and_named(folder, asked, tmp_path):
    """Breaks when only one of several is named, a name moves the cursor, or `bless` would take a part for the whole."""
    ids = [cell.id for cell in CELLS[:8]]
    whole = [*ids, "\x1b[2Jx"]
    several = f"6 of the cells that the runs were asked for: {', '.join(ids[3:6])} and 3 more"
    for have, words in ((3, several), (8, "x")):
        runs = [folder(ids, whole, have=ids[:have]), folder(whole[8:], whole, have=[])]
        code, out, _ = asked("fleet", "merge", *(str(run.path) for run in runs))
        assert code == EXIT_UNEXPECTED
        assert out.splitlines()[-1].endswith(words) and out.splitlines()[-1].startswith("missing: ")
        merged = storage.latest_run(tmp_path / "results")
        assert [entry.cell.id for entry in merged.results()] == ids[:have] and not merged.info().finished


def test_what_does_not_belong_together_is_refused(folder, tmp_path):
    ids = [cell.id for cell in CELLS[:2]]
    for change, message in (({"stack": "torch 2.4.0"}, "different stacks"), ({"whole": ids[1:]}, "different cells")):
        with pytest.raises(UsageError, match=message):
            merge([folder(ids[:1], ids), folder(ids[1:], **{"whole": ids} | change)])
    assert not (tmp_path / "results").exists(), "a merge that was refused left a run behind"


def test_a_merge_is_whole_and_replaces_the_one_before(folder, tmp_path):
    """Breaks when cells are lost, or stay of an earlier merge, or one that is asked for elsewhere is the newest run."""
    ids = [cell.id for cell in CELLS[:2]]
    nothing = folder([], ids, stack="")  # which has no stack
    into = tmp_path / "merged"
    assert merge([folder(ids[:1], ids)], into)[1] == ids[1:]
    merged, missing = merge([folder(ids[1:], ids), nothing, folder(ids[:1], ids)], into)
    assert (merged.path, missing) == (into, []) and len(merged.cells.read_text().splitlines()) == 2
    assert {entry.cell.id for entry in merged.results()} == {*ids}, "a merged run lost cells"
    assert merged.info() == RunInfo(cells=tuple(ids), stack=STACK, finished=True)
    assert not (tmp_path / "results").exists()


SOME = [cell for cell in CELLS if cell.failure == "zero3_dummy_loss"]


@pytest.fixture
def made_up(monkeypatch):
    """Durations that are made up."""
    estimates._medians.cache_clear()
    known = {"a/scenario/zero2/w2": 4.0, "b/scenario/zero3/w2": 2.0, "b/scenario/zero3/w4": 9.0}
    monkeypatch.setattr(estimates, "recorded", lambda: known)
    yield known
    estimates._medians.cache_clear()


def test_what_is_not_recorded_is_guessed_shared_out_and_said_as_people_do(made_up):
    """Breaks when a run is said to be shorter than its longest cell, or to take no time where nothing is recorded."""
    cells = [Cell("a", "broken", strategy) for strategy in ("zero2", "zero1", "ddp", "gone")]
    assert seconds_of(cells) == [4.0, 4.0, estimates.UNKNOWN, estimates.UNKNOWN], "the median of its family, if any"
    reference = 2 * estimates.UNKNOWN
    assert wall_seconds(cells[:1], 8) == START + 4.0 + reference
    assert wall_seconds([cells[0], Cell("a", "broken", "zero2", "reentrant")], 2) == START + (8.0 + reference) / 2
    assert wall_seconds([], 2) == 0
    assert estimate(SOME[:1], 1, 3) == "1 cell in 3 runs, less than a minute with 1 worker"
    assert {about(seconds) for seconds in (0, 59)} == {"less than a minute"}
    assert [about(seconds) for seconds in (61, 5400, 5460)] == ["about 1 min", "about 90 min", "about 1 h 31 min"]


@pytest.mark.parametrize("slower", [0.5, 1, 3])
def test_the_rest_is_measured_by_what_ran(slower):
    """Breaks when a machine that is three times as slow is promised the recorded time until the end."""
    still = estimates.Remaining(SOME, 2)
    whole, half = wall_seconds(SOME, 2), SOME[: len(SOME) // 2]
    share = sum(seconds_of(half)) / sum(seconds_of(SOME))
    elapsed = slower * (START + (whole - START) * share)
    for cell in half:
        still.without(cell, elapsed)
    assert still.seconds == pytest.approx(slower * (whole - START) * (1 - share))
    for cell in SOME[len(SOME) // 2 :]:
        still.without(cell, elapsed)
    assert still.seconds == pytest.approx(0, abs=1e-6)
    two = estimates.Remaining(SOME[:2], 1)
    two.without(SOME[0], 300)  # a model of somebody's own may take minutes
    assert 100 < two.seconds < 900
