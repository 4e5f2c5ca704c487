"""Results on disk: a line is there whole or not at all, and a run that was cut short goes on where it stopped."""

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
from faultline.ranks.facts import Facts
from faultline.ranks.report import ErrorReport
from faultline.runs import cache, measurement, results, storage
from faultline.runs.cache import Cache
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import Cause, Judgement
from faultline.runs.results import Beside, Checked, Deviation, RankError, RankResult, Rounding, result, worst_errors
from faultline.runs.storage import RunFolder, RunInfo, Writer, latest_run, new_run
from lab.proofs import reliability
from tests.support import reports

OPTIONS = ["run", "--failure", "zero3_dummy_loss", "--variant", "persistent", "--checkpointing", "off"]
CELLS = select(failures(), Selection(failure=("zero3_dummy_loss",), variant=("persistent",), checkpointing=("off",)))
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
    writer.add(*entries)
    writer.close()


@given(ENTRIES, st.binary(max_size=40), st.data())
@settings(max_examples=50)
def test_law_a_file_cut_at_any_byte_keeps_its_whole_lines_and_can_be_appended_to(entries, rubbish, draw):
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.cells.write_bytes(rubbish)
        write(folder, entries)
        assert folder.results()[-len(entries) :] == entries, "rubbish costs a line"
        folder.cells.unlink()
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


def test_a_result_is_on_disk_when_add_returns_and_the_last_of_a_cell_counts(tmp_path):
    folder, writer = RunFolder(tmp_path), Writer(RunFolder(tmp_path))
    for number, cell in enumerate(CELLS):
        writer.add(fake(cell))
        assert len(folder.results()) == number + 1, "Ctrl-C or a kill would lose a finished cell"
    writer.add(fake(CELLS[0], "second"))
    writer.close()
    assert [entry.detail for entry in folder.results()] == ["second", *[""] * (len(CELLS) - 1)]


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


def lines(folder, *entries):
    folder.cells.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def test_a_line_of_something_else_is_no_result(tmp_path):
    """Breaks when a foreign line ends a report in a KeyError, or counts for one cell in tables, another in rules."""
    folder, whole = RunFolder(tmp_path), fake(CELLS[0]).as_json()
    keys = whole.keys() - {"rank", "finding", "life", "compile"}  # which lines of earlier releases lack
    other_cells = [{"id": "a"}, {"id": 7}, {"id": CELLS[1].id}, {"strategy": "ddp"}, {"world_size": 8}]
    other_kinds = [{"seconds": "long"}, {"ranks": {}}, {"expected": None}, {"errors": [["w", 1]]}]

    def read(line):
        lines(folder, line, fake(CELLS[1]).as_json())
        return folder.read()

    foreign = [{name: whole[name] for name in whole if name != key} for key in keys]
    foreign += [whole | other for other in (*other_cells, *other_kinds)]
    assert not [line for line in foreign if read(line) != ([fake(CELLS[1])], 1)]


def test_the_result_of_a_check_is_read_as_it_was_written(tmp_path):
    """Breaks when what only a check knows is lost on the way, or its keys are in every line of a run."""
    folder = RunFolder(tmp_path)
    facts = Facts(model="Tiny", no_gradient=("a",), tied=(("a", "b"),), noise=1e-7)
    first = Difference(1, 0, "backward", "head", "nan", "head.w")
    finding = Finding(Factor("gradients", 0.5, ("1 / world size",)), ("a", "b"), 12, first)
    lists = ("train.py:3 in f: x",), (("a", "b"),), ("extra",), ("all_reduce (a.py:3)",), ("bypassed",)
    others = (Cause("differs", "w"), Cause("buffers-apart", "b")), (Beside("rows", "trains", "", ""),)
    checked = Checked("head", *lists, *others, facts)
    whole = replace(fake(CELLS[0]), checked=checked, finding=finding)
    write(folder, [whole, fake(CELLS[1])])
    one, other = map(json.loads, folder.cells.read_text().splitlines())
    only = {"raised_in", "at", "apart", "by_rank", "collectives", "shows", "causes", "beside", "facts"}
    assert one.keys() - other.keys() == only
    assert one["facts"]["class"] == "Tiny" and one["finding"]["first"]["error"] == "nan"
    assert folder.results() == [whole, fake(CELLS[1])]


def test_lines_that_are_left_out_are_counted_in_one_line(tmp_path, capsys):
    """Breaks when results get lost and nobody hears of it."""
    RunFolder(tmp_path).describe(cells=(CELLS[0].id,))
    for count, words in ((1, "1 line is left out"), (3, "3 lines are left out")):
        lines(RunFolder(tmp_path), fake(CELLS[0]).as_json(), *[{"id": "foreign"}] * count)
        app.main(["report", str(tmp_path)])
        [answer] = capsys.readouterr().err.splitlines()
        assert answer == f"{tmp_path}/cells.jsonl: {words}, cut short or no result of this version"


@pytest.fixture
def clock(monkeypatch):
    """Time by the second: `sleep` is the only thing that lets it pass."""
    seconds = []

    def now(form):
        return form.replace("%Y-%m-%dT%H-%M-%S", f"2026-01-01T00-00-{len(seconds):02}")

    monkeypatch.setattr(storage, "time", SimpleNamespace(sleep=seconds.append, strftime=now))


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("kind", ["repeat", "chaos"])
def test_the_newest_run_is_the_last_of_its_kind(tmp_path, kind):
    """Breaks when `bless`, `report` or `show` take a run with kills, or half a repetition, for the last one."""
    root = tmp_path / "new" / "results"
    for _ in range(3):
        run = new_run(root)
        assert latest_run(root).path == run.path.resolve()
    assert len({path.name for path in root.iterdir()}) == 4, "three runs of one second and `latest`, nothing else"
    assert not (root / "latest").readlink().is_absolute(), "results can't be moved"
    other = new_run(root, kind=kind)
    assert latest_run(root).path == run.path.resolve() and len([*storage.runs(root)]) == 3
    assert other.path.name.startswith(f"{kind}-") and other.info() == RunInfo(kind)
    assert run.info() == RunInfo()
    (tmp_path / "latest").symlink_to("gone")
    for without in (tmp_path, tmp_path / "new"):
        with pytest.raises(UsageError, match="no run yet"):
            latest_run(without)


def test_what_is_said_of_a_run_adds_up_and_what_is_no_run_is_refused(tmp_path):
    folder = RunFolder(tmp_path)
    folder.describe(request={}, cells=("a",))
    folder.describe(finished=False, stack="x")
    folder.describe(finished=True)
    assert folder.info() == RunInfo(cells=("a",), finished=True, stack="x")
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    for content in (b"", b"{", b"\xff", b"[]", None):
        if content is None:
            folder.path.joinpath("run.json").unlink()
        else:
            folder.path.joinpath("run.json").write_bytes(content)
        with pytest.raises(UsageError, match="not the results folder of a run"):
            folder.info()


@contextmanager
def at(root, stop_after=None, stack="", does=None, stops=KeyboardInterrupt):
    """Runs go below `root`, and cells are not run but noted; gives the ids of those that were to run.

    With a `stack`, what they did is kept under it.
    """
    ran = []

    def run_batches(batches, workers, engine, on_result):
        [part] = batches
        for cell in part.cells:
            if len(ran) == stop_after:
                raise stops
            ran.append(cell.id)
            on_result(part, (does or fake)(cell))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "RESULTS", root)
        for function in (storage.new_run, storage.latest_run):
            patch.setattr(function, "__defaults__", (root,))
        patch.setattr(measurement, "run_batches", run_batches)
        patch.setattr(expected, "rules", lambda failure: ())
        patch.setattr(cache, "of", lambda environment, device, again=0, here=True: Cache(stack, again))
        yield ran


@pytest.mark.slow
def test_a_repeated_run_measures_only_what_was_not_as_expected(tmp_path, capsys):
    """Breaks when a cell is measured twice for nothing, a surprise is answered with its echo, or --fresh isn't."""
    wrong = CELLS[1]

    def does(cell):
        return replace(fake(cell), outcome="hangs", verdict="unexpected pass") if cell == wrong else fake(cell)

    with at(tmp_path, stop_after=2, stack="other stack") as first:
        assert app.main(OPTIONS) == EXIT_INTERRUPTED
    with at(tmp_path, stack="other stack") as second:
        assert app.main(OPTIONS) == EXIT_AS_EXPECTED
    assert first + second == [cell.id for cell in CELLS]
    capsys.readouterr()

    for options, expected_to_run in ((OPTIONS, CELLS), (OPTIONS, [wrong]), ([*OPTIONS, "--fresh"], CELLS)):
        with at(tmp_path, stack="stack", does=does) as ran:
            assert app.main(options) == EXIT_UNEXPECTED
        assert ran == [cell.id for cell in expected_to_run]
        assert {entry.cell for entry in latest_run(tmp_path).results()} == {*CELLS}, "a run has all of its results"
        line = f"{len(CELLS) - 1} of {len(CELLS)} cells were measured before; --fresh runs them again"
        assert (line in capsys.readouterr().err) == (expected_to_run == [wrong])


@given(st.integers(0, len(CELLS)), st.data())
@settings(max_examples=12)
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


@pytest.mark.parametrize("ran", [0, 1])
def test_an_interrupted_run_says_how_far_it_came(tmp_path, capsys, ran):
    """Breaks when Ctrl-C is a traceback or promises results that aren't there, or nothing known is all as expected."""
    with at(tmp_path, stop_after=ran):
        assert app.main(OPTIONS) == EXIT_INTERRUPTED
    error, folder = capsys.readouterr().err, latest_run(tmp_path)
    so_far = f"{ran} of {len(CELLS)} cells ran" + (f"; the results so far are in {folder.shown}" if ran else "")
    goes_on = "the same command with --resume goes on"
    assert error.splitlines()[-1] == f"faultline: interrupted; {so_far}; {goes_on}" and "Traceback" not in error
    assert app.main(["report", str(folder.path)]) == EXIT_UNEXPECTED
    out = capsys.readouterr().out
    assert f"{ran} of {len(CELLS)} cells ran: `" in out and "faultline run --resume` with the same options" in out
    assert "Every cell did what was expected" not in out
    with at(tmp_path, stop_after=ran, stops=OSError(28, "No space left on device")):
        assert app.main(OPTIONS) == EXIT_USAGE
    so_far = so_far.replace(folder.shown, latest_run(tmp_path).shown)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("faultline: No space left on device; free some") and line.endswith(f"; {so_far}; {goes_on}")


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


@pytest.mark.slow
def test_reliability_is_measured_beside_the_newest_run(tmp_path, monkeypatch, capsys):
    """Breaks when `bless` or RESUME=1 would go on with a run of kills, or nobody says where its results are."""
    monkeypatch.setattr(reliability, "leftovers", dict)
    chaos = ("--cells", "3", "--workers", "1")
    with at(tmp_path):
        app.main(OPTIONS)
        before = latest_run(tmp_path).path
        for kind, options, count in (("repeat", OPTIONS[1:], 2), ("chaos", chaos, 1)):
            capsys.readouterr()
            assert app.main(["prove", kind, *options]) == EXIT_AS_EXPECTED
            assert latest_run(tmp_path).path == before
            made = sorted(tmp_path.glob(f"{kind}-*"))
            answer = [line for line in capsys.readouterr().out.splitlines() if line.startswith("results: ")]
            assert answer == [f"results: {path}/cells.jsonl" for path in made] and len(made) == count
            assert all(RunFolder(path).info().kind == kind and RunFolder(path).results() for path in made)


def test_ranks_are_kept_with_their_errors_and_the_worst_comes_first():
    def report(rank, error):
        step = {"gradients": {"a": error, "b": 0.0}, "weights": {"a": 10 * error}}
        ended_by = ErrorReport("E", "m", "t", at=1.0) if rank else None
        values = {"losses": [1.0], "steps": [step] * 3, "digests": ["d"], "evidence": {"wrapper": f"DDP of {rank}"}}
        return reports.report(rank=rank, error=ended_by, **values)

    killed = RankEnd(exit=-9, log="x" * 9000, shown={"a": 1})
    ended = Ended([RankEnd(report(0, 0.1), log="noise"), RankEnd(report(1, 0.2)), killed])
    entry = result(CELLS[0], Judgement(Outcome.CRASHES, Signature.DIFFERS), ended, STACK, Expectation(), "changed")
    assert [rank.exit for rank in entry.ranks] == [None, None, -9]
    assert [rank.error for rank in entry.ranks] == [None, RankError("E", "m", "t"), None]
    assert len(entry.ranks[2].log) == 4000
    assert entry.evidence == {"wrapper": "DDP of 0"}
    assert [rank.evidence for rank in entry.ranks] == [{"wrapper": "DDP of 0"}, {"wrapper": "DDP of 1"}, {"a": 1}]
    assert entry.errors[0] == ("a", "weights", 1, 1, 2.0)
    errors = [row[-1] for row in entry.errors]
    assert errors == sorted(errors, reverse=True) and 0.0 not in errors
    json.dumps(entry.as_json())
    # Workers of pytest-xdist can't send a result with a subclass of a text.
    assert type(entry.outcome) is type(entry.signature) is str
    assert stack_name({"torch": "2.13.0+cpu", "accelerate": "1.15.0"}) == "accelerate 1.15.0, torch 2.13.0"


def test_the_worst_of_each_kind_are_kept():
    """Breaks when the errors of weights, which are larger, leave no room for those of gradients."""
    step = {"gradients": {str(n): n / 1e6 for n in range(50)}, "weights": {str(n): n for n in range(50)}}
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


# The folder of a run that somebody names: begun once, gone on with by the same command, one process at a time.


def begun(path, cells=CELLS, resume=True, stack=None):
    return storage.begun("run", cells, stack or {"torch": "2.9.0"}, {}, resume=resume, named=path)


def test_the_same_command_begins_a_named_run_and_goes_on_with_it(tmp_path):
    """Breaks when a shard that is started again goes on with whichever run is the newest, or for another question."""
    first, second = tmp_path / "shard-1", tmp_path / "shard-2"
    for path in (first, second):
        path.mkdir()
    assert begun(first)[0].path == first and begun(second, CELLS[:1])[0].path == second
    assert begun(first)[0].info().cells == tuple(cell.id for cell in CELLS)
    assert begun(second, CELLS[:1])[0].info().cells == (CELLS[0].id,)
    assert not (tmp_path / "latest").exists()
    others = {"add --resume": {"resume": False}, "other cells": {"cells": CELLS[:1]}}
    for words, question in {**others, "another stack": {"stack": {"torch": "2.8.0"}}}.items():
        with pytest.raises(UsageError, match=words):
            begun(first, **question)


def test_who_comes_second_waits_until_the_first_has_ended(tmp_path, capsys):
    """Breaks when a node that was given up, and still is at work, writes into a file beside the one in its place."""

    def enter():
        with storage.alone(tmp_path):
            return True

    with ThreadPoolExecutor() as pool:
        with storage.alone(tmp_path):
            waits = pool.submit(enter)
            with pytest.raises(TimeoutError):
                waits.result(0.5)
        assert waits.result(20)
    assert "waiting until it ends" in capsys.readouterr().err
