"""Results on disk: a line is there whole or not at all, and a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base import packages, paths
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_INTERRUPTED, EXIT_UNEXPECTED, EXIT_USAGE, UsageError
from faultline.base.packages import stack_name
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells import expected
from faultline.cells.expected import Expectation
from faultline.cells.finding import Difference, Factor, Finding
from faultline.cells.selection import Selection, select
from faultline.cli import app
from faultline.maintain import reliability
from faultline.ranks.facts import Facts
from faultline.ranks.report import ErrorReport
from faultline.runs import cache, engines, results, storage
from faultline.runs.cache import Cache
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import Cause, Judgement
from faultline.runs.results import Beside, Checked, Deviation, RankError, RankResult, Rounding, result, worst_errors
from faultline.runs.storage import RunFolder, RunInfo, Writer, latest_run, new_run
from tests.support import reports

OPTIONS = ["run", "--failure", "zero3_dummy_loss", "--variant", "persistent", "--checkpointing", "off"]
CELLS = select(failures(), Selection(("zero3_dummy_loss",), ("persistent",), checkpointing=("off",)))
STACK = packages.versions()


def fake(cell, detail=""):
    """The result of a cell that nobody ran."""
    return result(cell, Judgement(Outcome.TRAINS, detail=detail), Ended([]), STACK, Expectation(), "expected")


TEXTS = st.text(max_size=20) | st.sampled_from(['"}\n{"id": "other"}', "\u2028\x85\x1c\x0b", "\ud800", "a\r\nb"])
ENTRIES = st.lists(TEXTS, min_size=1, max_size=len(CELLS)).map(
    lambda texts: [fake(cell, text) for cell, text in zip(CELLS, texts, strict=False)]
)


def write(folder, entries):
    writer = Writer(folder)
    for entry in entries:
        writer.add(entry)
    writer.close()


@given(ENTRIES, st.data())
@settings(deadline=None, max_examples=50)
def test_law_a_file_cut_at_any_byte_keeps_its_whole_lines_and_can_be_appended_to(entries, draw):
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        write(folder, entries)
        assert folder.results() == entries, "what was written is not what is read"
        whole = folder.cells.read_bytes()
        cut = draw.draw(st.integers(0, len(whole)))
        folder.cells.write_bytes(whole[:cut])
        lines = whole[:cut].count(b"\n")
        # A last line that lacks only its end is whole as well.
        remaining = entries[: lines + (whole[cut : cut + 1] == b"\n")]
        assert folder.results() == remaining, "a torn line hides whole ones, or is taken for one"
        write(folder, entries[len(remaining) :])
        assert folder.results() == entries, "what is written behind a torn line is lost"


@given(st.binary(max_size=40), ENTRIES)
@settings(deadline=None, max_examples=30)
def test_law_rubbish_between_lines_costs_no_line(rubbish, entries):
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.cells.write_bytes(rubbish)
        write(folder, entries)
        assert folder.results()[-len(entries) :] == entries


def test_a_cell_that_ran_twice_has_its_last_result(tmp_path):
    folder = RunFolder(tmp_path)
    write(folder, [fake(CELLS[0], "first"), fake(CELLS[1]), fake(CELLS[0], "second")])
    assert [entry.detail for entry in folder.results()] == ["second", ""]


def test_a_result_is_on_disk_when_add_returns(tmp_path):
    folder, writer = RunFolder(tmp_path), Writer(RunFolder(tmp_path))
    for number, cell in enumerate(CELLS):
        writer.add(fake(cell))
        assert len(folder.results()) == number + 1, "Ctrl-C or a kill would lose a finished cell"
    writer.close()


def test_numbers_that_json_lacks_are_texts(tmp_path):
    """Breaks when a line is no JSON for other tools, which know neither NaN nor Infinity."""
    folder = RunFolder(tmp_path)
    numbers = [float("inf"), float("-inf"), float("nan"), 0.5]
    entry = replace(fake(CELLS[0]), relative_error=numbers[0], ranks=(RankResult(0, losses=tuple(numbers)),))
    write(folder, [entry])
    (line,) = folder.cells.read_text().splitlines()
    matches = json.loads(line, parse_constant=pytest.fail)
    losses = matches["ranks"][0]["losses"]
    assert (matches["relative_error"], losses) == ("inf", ["inf", "-inf", "nan", 0.5])
    assert [repr(float(text)) for text in losses] == [repr(number) for number in numbers]
    [again] = folder.results()
    assert again == replace(entry, relative_error="inf", ranks=(RankResult(0, losses=("inf", "-inf", "nan", 0.5)),))


KEYS = {*fake(CELLS[0]).as_json()} - {"rank", "finding", "life"}  # which lines of earlier releases lack


def lines(folder, *entries):
    folder.cells.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_line_without_one_of_the_keys_is_no_result(tmp_path, key):
    """Breaks when a foreign line ends `report`, `bless` or `readme` in a KeyError."""
    folder = RunFolder(tmp_path)
    entry = {name: value for name, value in fake(CELLS[0]).as_json().items() if name != key}
    lines(folder, entry, fake(CELLS[1]).as_json())
    assert folder.read() == ([fake(CELLS[1])], 1)


@pytest.mark.parametrize("other", [{"id": "a"}, {"id": 7}, {"id": CELLS[1].id}, {"strategy": "ddp"}, {"world_size": 8}])
def test_an_id_that_says_something_else_than_its_axes_is_no_result(tmp_path, other):
    """Breaks when a line counts for one cell in tables and for another one in rules."""
    folder = RunFolder(tmp_path)
    lines(folder, {**fake(CELLS[0]).as_json(), **other})
    assert folder.read() == ([], 1)


@pytest.mark.parametrize("other", [{"seconds": "long"}, {"ranks": {}}, {"expected": None}, {"errors": [["w", 1]]}])
def test_a_value_of_another_kind_is_no_results(tmp_path, other):
    """Breaks when a foreign line ends a report in a TypeError."""
    folder = RunFolder(tmp_path)
    lines(folder, {**fake(CELLS[0]).as_json(), **other})
    assert folder.read() == ([], 1)


def test_the_result_of_a_check_is_read_as_it_was_written(tmp_path):
    """Breaks when what only a check knows is lost on the way, or its keys are in every line of a run."""
    folder = RunFolder(tmp_path)
    facts = Facts(model="Tiny", no_gradient=("a",), tied=(("a", "b"),), noise=1e-7)
    first = Difference(1, 0, "backward", "head", "nan", "head.w")
    finding = Finding(Factor("gradients", 0.5, ("1 / world size",)), ("a", "b"), 12, first)
    shown = ("train.py:3 in f: x",), (("a", "b"),), ("extra",), ("all_reduce (a.py:3)",), ("bypassed",)
    others = (Cause("differs", "w"), Cause("buffers-apart", "b")), (Beside("rows", "trains", "", ""),)
    checked = Checked("head", *shown, *others, facts)
    whole = replace(fake(CELLS[0]), checked=checked, finding=finding)
    write(folder, [whole, fake(CELLS[1])])
    one, other = map(json.loads, folder.cells.read_text().splitlines())
    only = {"raised_in", "at", "apart", "by_rank", "collectives", "shows", "causes", "beside", "facts"}
    assert one.keys() - other.keys() == only
    assert one["facts"]["class"] == "Tiny" and one["finding"]["first"]["error"] == "nan"
    assert folder.results() == [whole, fake(CELLS[1])]


@pytest.mark.parametrize(("count", "words"), [(1, "1 line is left out"), (3, "3 lines are left out")])
def test_lines_that_are_left_out_are_counted_in_one_line(tmp_path, capsys, count, words):
    """Breaks when results get lost and nobody hears of it."""
    folder = RunFolder(tmp_path)
    folder.describe(cells=(CELLS[0].id,))
    lines(folder, fake(CELLS[0]).as_json(), *[{"id": "foreign"}] * count)
    app.main(["report", str(tmp_path)])
    [answer] = capsys.readouterr().err.splitlines()
    assert answer == f"{tmp_path}/cells.jsonl: {words}, cut short or no result of this version"


@pytest.fixture
def clock(monkeypatch):
    """Time by the second: `sleep` is the only thing that lets it pass."""
    seconds = [0]

    def sleep(_):
        seconds[0] += 1

    monkeypatch.setattr(
        storage,
        "time",
        SimpleNamespace(
            sleep=sleep, strftime=lambda form: form.replace("%Y-%m-%dT%H-%M-%S", f"2026-01-01T00-00-{seconds[0]:02}")
        ),
    )


@pytest.mark.usefixtures("clock")
def test_latest_points_to_the_newest_run(tmp_path):
    root = tmp_path / "new" / "results"
    for _ in range(3):
        run = new_run(root)
        assert latest_run(root).path == run.path.resolve()
    assert len({path.name for path in root.iterdir()}) == 4, "three runs of one second and `latest`, nothing else"
    assert not (root / "latest").readlink().is_absolute(), "results can't be moved"


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["repeat", "chaos"])
def test_a_run_of_another_kind_says_so_and_is_not_the_newest(tmp_path, kind):
    """Breaks when `bless`, `report` or `show` take a run with kills, or half a repetition, for the last one."""
    run = new_run(tmp_path)
    other = new_run(tmp_path, kind=kind)
    assert latest_run(tmp_path).path == run.path.resolve()
    assert [folder.path for folder in storage.runs(tmp_path)] == [run.path]
    assert other.path.name.startswith(f"{kind}-") and other.info() == RunInfo(kind)
    assert run.info() == RunInfo()


def test_without_a_run_there_is_no_newest(tmp_path):
    with pytest.raises(UsageError, match="no run yet"):
        latest_run(tmp_path)
    (tmp_path / "latest").symlink_to("gone")
    with pytest.raises(UsageError, match="no run yet"):
        latest_run(tmp_path)


def test_what_is_said_of_a_run_adds_up(tmp_path):
    folder = RunFolder(tmp_path)
    folder.describe(request={}, cells=("a",))
    folder.describe(finished=False, stack="x")
    folder.describe(finished=True)
    assert folder.info() == RunInfo(cells=("a",), finished=True, stack="x")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[]"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match="not the results folder of a run"):
        RunFolder(tmp_path).info()


@contextmanager
def at(root, stop_after=None, stack="", does=None):
    """Runs go below `root`, and cells are not run but noted; gives the ids of those that were to run.

    With a `stack`, what they did is kept under it.
    """
    ran = []

    def run_parts(parts, workers, run, engine):
        [part] = parts
        for cell in part.cells:
            if len(ran) == stop_after:
                raise KeyboardInterrupt
            ran.append(cell.id)
            part.done((does or fake)(cell))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RESULTS", root)
        patch.setattr(storage.new_run, "__defaults__", (root,))
        patch.setattr(storage.latest_run, "__defaults__", (root,))
        patch.setattr(engines, "run_parts", run_parts)
        patch.setattr(expected, "rules", lambda failure: ())
        patch.setattr(cache, "of", lambda environment, device, again=0, here=True: Cache(stack, again))
        yield ran


@pytest.mark.slow
def test_a_repeated_run_measures_only_what_was_not_as_expected(tmp_path, capsys):
    """Breaks when a cell is measured twice for nothing, a surprise is answered with its echo, or --fresh isn't."""
    wrong = CELLS[1]

    def does(cell):
        return replace(fake(cell), outcome="hangs", verdict="unexpected failure") if cell == wrong else fake(cell)

    for options, expected_to_run in ((OPTIONS, CELLS), (OPTIONS, [wrong]), ([*OPTIONS, "--fresh"], CELLS)):
        with at(tmp_path, stack="stack", does=does) as ran:
            assert app.main(options) == EXIT_UNEXPECTED
        assert ran == [cell.id for cell in expected_to_run]
        assert {entry.cell for entry in latest_run(tmp_path).results()} == {*CELLS}, "a run has all of its results"
        line = f"{len(CELLS) - 1} of {len(CELLS)} cells were measured before; --fresh runs them again"
        assert (line in capsys.readouterr().err) == (expected_to_run == [wrong])


def test_an_interrupted_run_is_not_lost_on_the_next_one(tmp_path):
    """Breaks when what was measured before Ctrl-C is measured again by a run that isn't told to resume."""
    with at(tmp_path, stop_after=2, stack="stack") as first:
        assert app.main(OPTIONS) == EXIT_INTERRUPTED
    with at(tmp_path, stack="stack") as second:
        assert app.main(OPTIONS) == EXIT_AS_EXPECTED
    assert first + second == [cell.id for cell in CELLS]


@given(st.integers(0, len(CELLS)), st.data())
@settings(deadline=None, max_examples=12)
@pytest.mark.slow
def test_law_resuming_after_any_prefix_runs_exactly_the_rest(count, draw):
    with tempfile.TemporaryDirectory() as name:
        with at(Path(name), stop_after=count) as first:
            assert app.main(OPTIONS) == (EXIT_INTERRUPTED if count < len(CELLS) else EXIT_AS_EXPECTED)
        folder = latest_run(Path(name))
        assert folder.info().finished == (count == len(CELLS))
        written = folder.cells.read_bytes()
        torn = draw.draw(st.integers(0, len(written.splitlines(keepends=True)[-1]) if written else 0))
        folder.cells.write_bytes(written[: len(written) - torn])
        have = {entry.cell.id for entry in folder.results()}
        assert set(first[:-1]) <= have <= set(first)
        with at(Path(name)) as second:
            assert app.main([*OPTIONS, "--resume"]) == EXIT_AS_EXPECTED
        assert second == [cell.id for cell in CELLS if cell.id not in have], "a cell is lost, or run again"
        assert {entry.cell.id for entry in folder.results()} == {cell.id for cell in CELLS}
        assert folder.info().finished and latest_run(Path(name)) == folder
        assert {"report.html", "junit.xml"} <= {path.name for path in folder.path.iterdir()}


def test_an_interrupted_run_says_so_in_one_line(tmp_path, capsys):
    with at(tmp_path, stop_after=1):
        assert app.main(OPTIONS) == EXIT_INTERRUPTED
    error = capsys.readouterr().err
    assert "Traceback" not in error
    remaining = latest_run(tmp_path).shown
    so_far = f"1 of {len(CELLS)} cells ran; the results so far are in {remaining}"
    goes_on = "the same command with --resume goes on"
    assert error.splitlines()[-1] == f"faultline: interrupted; {so_far}; {goes_on}"


def test_an_interrupted_run_without_a_result_does_not_promise_one(tmp_path, capsys):
    with at(tmp_path, stop_after=0):
        assert app.main(OPTIONS) == EXIT_INTERRUPTED
    goes_on = "the same command with --resume goes on"
    assert capsys.readouterr().err.splitlines()[-1] == f"faultline: interrupted; 0 of {len(CELLS)} cells ran; {goes_on}"


@pytest.mark.parametrize("ran", [0, 1])
def test_a_report_of_an_interrupted_run_says_how_far_it_came(tmp_path, capsys, ran):
    """Breaks when a run of which nothing is known is reported as one where all is as expected."""
    with at(tmp_path, stop_after=ran):
        app.main(OPTIONS)
    capsys.readouterr()
    assert app.main(["report", str(latest_run(tmp_path).path)]) == EXIT_UNEXPECTED
    out = capsys.readouterr().out
    assert f"{ran} of {len(CELLS)} cells ran: `" in out and "faultline run --resume` with the same options" in out
    assert "Every cell did what was expected" not in out


@pytest.mark.parametrize("options", [["--strategy", "zero3"], ["--shard", "1/2"], ["--precision", "bf16"]])
def test_resuming_with_other_options_is_refused(tmp_path, capsys, options):
    with at(tmp_path, stop_after=1):
        app.main(OPTIONS)
    capsys.readouterr()
    with at(tmp_path) as ran:
        assert app.main([*OPTIONS, "--resume", *options]) == EXIT_USAGE
    assert not ran
    assert "asked for other cells" in capsys.readouterr().err


def test_a_run_of_another_stack_is_neither_resumed_nor_blessed(tmp_path, capsys):
    with at(tmp_path) as ran:
        app.main(OPTIONS)
        folder = latest_run(tmp_path)
        folder.describe(stack="torch 2.4.0")
        capsys.readouterr()
        ran.clear()
        for argv in ([*OPTIONS, "--resume"], ["maintain", "bless"]):
            assert app.main(argv) == EXIT_USAGE, f"{argv[0]} mixes two stacks"
            [line] = capsys.readouterr().err.splitlines()
            assert "run on another stack (torch 2.4.0)" in line
    assert not ran


def test_the_exit_code_says_whether_all_was_expected(tmp_path, monkeypatch, capsys):
    def unexpected(parts, workers, run, engine):
        [part] = parts
        for cell in part.cells:
            part.done(replace(fake(cell), verdict="unexpected pass"))

    with at(tmp_path):
        assert app.main(OPTIONS) == EXIT_AS_EXPECTED
        with monkeypatch.context() as patched:  # left before `at` is, or its run_parts would come back and stay
            patched.setattr(engines, "run_parts", unexpected)
            assert app.main(OPTIONS) == EXIT_UNEXPECTED, "an unexpected pass counts"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "argv", "folders"),
    [
        ("repeat", ["maintain", "repeat", *OPTIONS[1:]], 2),
        ("chaos", ["maintain", "chaos", "--cells", "3", "--workers", "1"], 1),
    ],
)
def test_reliability_is_measured_beside_the_newest_run(tmp_path, monkeypatch, capsys, kind, argv, folders):
    """Breaks when `bless` or RESUME=1 would go on with a run of kills, or nobody says where its results are."""
    monkeypatch.setattr(reliability, "leftovers", dict)
    with at(tmp_path):
        app.main(OPTIONS)
        before = latest_run(tmp_path).path
        capsys.readouterr()
        assert app.main(argv) == EXIT_AS_EXPECTED
        assert latest_run(tmp_path).path == before
    made = sorted(tmp_path.glob(f"{kind}-*"))
    assert len(made) == folders
    answer = [line for line in capsys.readouterr().out.splitlines() if line.startswith("results: ")]
    assert answer == [f"results: {path}/cells.jsonl" for path in made]
    for path in made:
        assert RunFolder(path).info().kind == kind and RunFolder(path).results()


def test_ranks_are_kept_with_their_errors_and_the_worst_comes_first():
    def report(rank, error):
        step = {"gradients": {"a": error, "b": 0.0}, "weights": {"a": 10 * error}}
        ended_by = ErrorReport("E", "m", "t", at=1.0) if rank else None
        values = {"losses": [1.0], "steps": [step] * 3, "digests": ["d"], "evidence": {"wrapper": f"DDP of {rank}"}}
        return reports.report(rank=rank, error=ended_by, **values)

    ended = Ended(
        [
            RankEnd(report(0, 0.1), log="noise"),
            RankEnd(report(1, 0.2)),
            RankEnd(exit=-9, log="x" * 9000, shown={"a": 1}),
        ]
    )
    entry = result(CELLS[0], Judgement(Outcome.CRASHES), ended, STACK, Expectation(), "changed")
    assert [rank.exit for rank in entry.ranks] == [None, None, -9]
    assert [rank.error for rank in entry.ranks] == [None, RankError("E", "m", "t"), None]
    assert len(entry.ranks[2].log) == 4000
    assert entry.evidence == {"wrapper": "DDP of 0"}
    assert [rank.evidence for rank in entry.ranks] == [{"wrapper": "DDP of 0"}, {"wrapper": "DDP of 1"}, {"a": 1}]
    assert entry.errors[0] == ("a", "weights", 1, 1, 2.0)
    errors = [row[-1] for row in entry.errors]
    assert errors == sorted(errors, reverse=True) and 0.0 not in errors
    json.dumps(entry.as_json())


def test_the_worst_of_each_kind_are_kept():
    """Breaks when the errors of weights, which are larger, leave no room for those of gradients."""
    step = {
        "gradients": {str(n): n / 1e6 for n in range(50)},
        "weights": {str(n): n for n in range(50)},
    }
    rows = worst_errors([reports.report(steps=[step])])
    for kind, size in (("gradients", 1e-6), ("weights", 1)):
        relevant = [row[-1] for row in rows if row[1] == kind]
        assert relevant == [pytest.approx(n * size) for n in range(49, 49 - results.WORST, -1)]
    assert [row[-1] for row in rows] == sorted((row[-1] for row in rows), reverse=True)


def test_errors_that_rounding_explains_are_told_apart():
    """Breaks when such an error is listed among the others, or nobody can see how large they get."""
    step = {"gradients": {"a": 0.1, "b": 1.5}, "weights": {"b": 2.5}, "rounding": {"gradients:b": 1.25}}
    other = step | {"rounding": {"gradients:b": 1.5, "weights:b": 1.0}}
    both = [reports.report(steps=[step, other])]
    assert ("b", "gradients", 1, 0, 1.5) not in worst_errors(both)
    assert ("b", "weights", 1, 0, 2.5) in worst_errors(both)
    assert results.excused(both) == Rounding(3, Deviation("b", "weights", 2, 0, 2.5), 1.5)
    assert results.excused([reports.report()]) == Rounding()


def test_the_stack_is_one_line_without_build_tags():
    assert stack_name({"torch": "2.13.0+cpu", "accelerate": "1.15.0"}) == "accelerate 1.15.0, torch 2.13.0"


def test_an_outcome_and_its_signature_are_plain_texts():
    """Breaks when workers of pytest-xdist can't send a result: they take no subclass of a text."""
    cell = select(failures(), Selection(failure=("zero3_dummy_loss",)))[0]
    judged = Judgement(Outcome.DIVERGES, Signature.DIFFERS)
    entry = result(cell, judged, Ended([]), {}, Expectation(), "expected")
    assert type(entry.outcome) is type(entry.signature) is str
