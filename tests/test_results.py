"""Results on disk: a line is there whole or not at all, and a run that was cut short goes on where it stopped."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline import cli, results, runner, server
from faultline.catalogue import failures
from faultline.errors import UsageError
from faultline.expectations import Expectation
from faultline.matrix import Selection, select
from faultline.oracle import Judgement, Outcome
from faultline.ranks import Ended, RankEnd
from faultline.results import RunFolder, Writer, latest_run, new_run, result, stack_name, worst_errors

OPTIONS = ["run", "--failure", "zero3_dummy_loss", "--variant", "not_partitioned", "--checkpointing", "off"]
CELLS = select(failures(), Selection(("zero3_dummy_loss",), ("not_partitioned",), checkpointing=("off",)))
STACK = stack_name(server.versions())


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
        kept = entries[: lines + (whole[cut : cut + 1] == b"\n")]
        assert folder.results() == kept, "a torn line hides whole ones, or is taken for one"
        write(folder, entries[len(kept) :])
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
    assert [entry["detail"] for entry in folder.results()] == ["second", ""]


class Slow:
    """A file that takes its time in the middle of every line, as a full disk or a network does."""

    def __init__(self, file):
        self.file = file

    def write(self, text):
        for half in (text[: len(text) // 2], text[len(text) // 2 :]):
            self.file.write(half)
            self.file.flush()
            time.sleep(0.001)

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_writing_from_many_threads_gives_whole_lines(tmp_path):
    folder, writer = RunFolder(tmp_path), Writer(RunFolder(tmp_path))
    writer._file = Slow(writer._file)

    def work(name):
        for number in range(15):
            writer.add({"id": f"{name}.{number}", "text": "x" * 200})

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert folder.cells.read_bytes().count(b"\n") == 90
    assert {entry["id"] for entry in folder.results()} == {f"{t}.{n}" for t in range(6) for n in range(15)}, (
        "lines of two workers were mixed"
    )


def test_a_result_is_on_disk_when_add_returns(tmp_path):
    folder, writer = RunFolder(tmp_path), Writer(RunFolder(tmp_path))
    for number, cell in enumerate(CELLS):
        writer.add(fake(cell))
        assert len(folder.results()) == number + 1, "Ctrl-C or a kill would lose a finished cell"
    writer.close()


def test_numbers_that_json_lacks_survive(tmp_path):
    folder = RunFolder(tmp_path)
    write(folder, [{"id": "a", "relative_error": float("inf")}])
    assert folder.results() == [{"id": "a", "relative_error": float("inf")}]


@pytest.fixture
def clock(monkeypatch):
    """Time by the second: `sleep` is the only thing that lets it pass."""
    seconds = [0]

    def sleep(_):
        seconds[0] += 1

    monkeypatch.setattr(
        results, "time", SimpleNamespace(sleep=sleep, strftime=lambda _: f"2026-01-01T00-00-{seconds[0]:02}")
    )


@pytest.mark.usefixtures("clock")
def test_latest_points_to_the_newest_run(tmp_path):
    root = tmp_path / "new" / "results"
    for _ in range(3):
        run = new_run(root)
        assert latest_run(root).path == run.path.resolve()
    assert len({path.name for path in root.iterdir()}) == 4, "three runs of one second and `latest`, nothing else"
    assert not (root / "latest").readlink().is_absolute(), "results can't be moved"


def test_without_a_run_there_is_no_newest(tmp_path):
    with pytest.raises(UsageError, match="no run yet"):
        latest_run(tmp_path)
    (tmp_path / "latest").symlink_to("gone")
    with pytest.raises(UsageError, match="no run yet"):
        latest_run(tmp_path)


def test_what_is_said_of_a_run_adds_up(tmp_path):
    folder = RunFolder(tmp_path)
    folder.describe(selection={}, cells=["a"])
    folder.describe(finished=False, stack="x")
    folder.describe(finished=True)
    assert folder.facts() == {"selection": {}, "cells": ["a"], "finished": True, "stack": "x"}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff", b"[]"])
def test_a_folder_that_is_no_run_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(UsageError, match="not the results folder of a run"):
        RunFolder(tmp_path).facts()


@contextmanager
def at(root, stop_after=None):
    """Runs go below `root`, and cells are not run but noted; gives the ids of those that were to run."""
    ran = []

    def run_all(cells, workers, done):
        for cell in cells:
            if len(ran) == stop_after:
                raise KeyboardInterrupt
            ran.append(cell.id)
            done(fake(cell))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "RESULTS", root)
        patch.setattr(results.new_run, "__defaults__", (root,))
        patch.setattr(results.latest_run, "__defaults__", (root,))
        patch.setattr(runner, "run_all", run_all)
        patch.setattr(runner, "rules", lambda failure: ())
        yield ran


@given(st.integers(0, len(CELLS)), st.data())
@settings(deadline=None, max_examples=12)
def test_law_resuming_after_any_prefix_runs_exactly_the_rest(count, draw):
    with tempfile.TemporaryDirectory() as name:
        with at(Path(name), stop_after=count) as first:
            assert cli.main(OPTIONS) == (cli.EXIT_INTERRUPTED if count < len(CELLS) else cli.EXIT_AS_EXPECTED)
        folder = latest_run(Path(name))
        assert bool(folder.facts().get("finished")) == (count == len(CELLS))
        written = folder.cells.read_bytes()
        torn = draw.draw(st.integers(0, len(written.splitlines(keepends=True)[-1]) if written else 0))
        folder.cells.write_bytes(written[: len(written) - torn])
        have = {entry["id"] for entry in folder.results()}
        assert set(first[:-1]) <= have <= set(first)
        with at(Path(name)) as second:
            assert cli.main([*OPTIONS, "--resume"]) == cli.EXIT_AS_EXPECTED
        assert second == [cell.id for cell in CELLS if cell.id not in have], "a cell is lost, or run again"
        assert {entry["id"] for entry in folder.results()} == {cell.id for cell in CELLS}
        assert folder.facts()["finished"] and latest_run(Path(name)) == folder
        assert {"report.html", "junit.xml"} <= {path.name for path in folder.path.iterdir()}


def test_an_interrupted_run_says_so_in_one_line(tmp_path, capsys):
    with at(tmp_path, stop_after=1):
        assert cli.main(OPTIONS) == cli.EXIT_INTERRUPTED
    error = capsys.readouterr().err
    assert "Traceback" not in error
    assert error.splitlines()[-1] == "faultline: interrupted; what was measured is kept, RESUME=1 goes on"


@pytest.mark.parametrize("options", [["--strategy", "zero3"], ["--shard", "1/2"], ["--precision", "bf16"]])
def test_resuming_with_other_options_is_refused(tmp_path, capsys, options):
    with at(tmp_path, stop_after=1):
        cli.main(OPTIONS)
    capsys.readouterr()
    with at(tmp_path) as ran:
        assert cli.main([*OPTIONS, "--resume", *options]) == cli.EXIT_USAGE
    assert not ran
    assert "asked for other cells" in capsys.readouterr().err


def test_a_run_of_another_stack_is_neither_resumed_nor_blessed(tmp_path, capsys):
    with at(tmp_path) as ran:
        cli.main(OPTIONS)
        folder = latest_run(tmp_path)
        folder.describe(stack="torch 2.4.0")
        capsys.readouterr()
        ran.clear()
        for argv in ([*OPTIONS, "--resume"], ["bless"]):
            assert cli.main(argv) == cli.EXIT_USAGE, f"{argv[0]} mixes two stacks"
            [line] = capsys.readouterr().err.splitlines()
            assert "run on another stack (torch 2.4.0)" in line
    assert not ran


def test_the_exit_code_says_whether_all_was_expected(tmp_path, monkeypatch, capsys):
    def unexpected(cells, workers, done):
        for cell in cells:
            done({**fake(cell), "verdict": "unexpected pass"})

    with at(tmp_path):
        assert cli.main(OPTIONS) == cli.EXIT_AS_EXPECTED
        with monkeypatch.context() as patched:  # left before `at` is, or its run_all would come back and stay
            patched.setattr(runner, "run_all", unexpected)
            assert cli.main(OPTIONS) == cli.EXIT_UNEXPECTED, "an unexpected pass counts"


def test_ranks_are_kept_with_their_errors_and_the_worst_comes_first():
    def report(rank, error):
        step = {"bad": [], "gradients": {"a": error, "b": 0.0}, "weights": {"a": 10 * error}}
        told = {"type": "E", "message": "m", "traceback": "t", "at": 1.0} if rank else None
        found = {"losses": [1.0], "steps": [step] * 3, "digests": ["d"], "evidence": {"wrapper": "DDP"}}
        return {"rank": rank, "error": told, **found}

    ended = Ended([RankEnd(report(0, 0.1), log="noise"), RankEnd(report(1, 0.2)), RankEnd(exit=-9, log="x" * 9000)])
    entry = result(CELLS[0], Judgement(Outcome.CRASHES), ended, STACK, Expectation(), "changed")
    assert [rank["exit"] for rank in entry["ranks"]] == [None, None, -9]
    assert [rank["error"] for rank in entry["ranks"]] == [None, {"type": "E", "message": "m", "traceback": "t"}, None]
    assert len(entry["ranks"][2]["log"]) == 4000
    assert entry["evidence"] == {"wrapper": "DDP"}
    assert entry["errors"][0] == ["a", "weights", 1, 1, 2.0]
    errors = [row[-1] for row in entry["errors"]]
    assert errors == sorted(errors, reverse=True) and 0.0 not in errors
    many = [{"rank": 0, "steps": [{"bad": [], "weights": {str(n): float(n) for n in range(100)}}]}]
    assert len(worst_errors(many)) == results.WORST
    json.dumps(entry)


def test_the_stack_is_one_line_without_build_tags():
    assert stack_name({"torch": "2.13.0+cpu", "accelerate": "1.15.0"}) == "accelerate 1.15.0, torch 2.13.0"
