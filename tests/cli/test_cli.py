"""The command line: whatever is wrong with a question, the answer is one clear line and exit code 2."""

import json
import shutil
import signal
import subprocess
from unittest.mock import Mock

import pytest

from faultline import strategies
from faultline.base import packages, paths
from faultline.base.errors import EXIT_USAGE, UsageError
from faultline.base.text import plain
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Outcome
from faultline.cells import selection
from faultline.cells.selection import Selection
from faultline.matrix import command
from faultline.runs import engines, measurement, storage
from faultline.runs.oracle import Judgement
from faultline.runs.storage import RunFolder
from tests.support.judged import judged
from tests.support.program import python

DURATIONS = ["record", "--durations"]
FOLDER_VERBS = ("maintain bless", "maintain readmes", "report", "maintain record --durations")
FAILURES = loading.failures()
SHOWN = "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu"
DDP = "zero3_dummy_loss/broken/ddp/off/fp32/w2"


@pytest.fixture(autouse=True)
def results_elsewhere(tmp_path, monkeypatch):
    """No test writes to the real results; and nothing here may start ranks."""
    root = tmp_path / "results"
    monkeypatch.setattr(paths, "RESULTS", root)
    for function in (storage.new_run, storage.latest_run, storage.runs):
        monkeypatch.setattr(function, "__defaults__", (root,))

    def run_batches(*_):
        raise AssertionError("cells were run although the question was a mistake")

    monkeypatch.setattr(measurement, "run_batches", run_batches)
    return root


@pytest.fixture
def refused(asked, results_elsewhere):
    """Ask for something that must be refused; gives the line that says why."""

    def refuse(*argv):
        code, out, errors = asked(*argv)
        assert code == EXIT_USAGE, f"{argv} was not refused: {code}"
        assert len(errors) == 1 and errors[0].startswith("faultline: "), f"not one line: {errors}"
        assert not out, "half an answer came before the mistake was noticed"
        assert not results_elsewhere.exists() or "latest" in errors[0] or not list(results_elsewhere.glob("2*")), (
            "a run that was refused left a results folder"
        )
        return errors[0]

    return refuse


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["list", "--strategy", "xyz"], f"unknown strategy 'xyz': one of {', '.join(strategies.names())}"),
        (["list", "--failure", "xyz"], f"'xyz': one of {', '.join([*FAILURES][:10])} and {len(FAILURES) - 10} more"),
        (["run", "--device", "cpu,cuda"], "did you mean cpu"),
        (["run", "--workers", "many"], "--workers"),
        (["run", "--resume=maybe"], "--resume"),
        (["prove", "chaos", "--cells", "-1"], "--cells"),
        (["list", "--world", "2,x"], "--world takes numbers, not '2,x'"),
        (["run", "--workers", "0"], "--workers must be at least 1, not 0"),
        (["run", "--shard", "5/4"], "--shard takes I/N with 1 <= I <= N, for instance 1/4, not '5/4'"),
        (["run", "--world", "4", "--strategy", "single"], "no cell matches all of these options"),
        (["run", "--cell", f"{DDP}/cpu,{DDP}/cuda"], "give cells of one device at a time"),
        (["list", "--cell", f"{DDP}/cpu", "--device", "cuda", "--world", "2"], "leave out --world and --device"),
        (["run", "--resume"], "there is no run yet"),
        (["timeline", "--write", "--since", "2025-06-01"], "needs all months that are recorded, and 2025-03-01"),
        (["show", "zero3_dumy_loss"], "did you mean zero3_dummy_loss?"),
        (["show", "zero3_"], "6 failures begin with 'zero3_': zero3_accumulation_outside_forward, zero3_dummy_loss"),
        (["list", "--ids", "--left-out"], "--ids and --left-out exclude each other"),
        (["check", "m.py:f", "--stack", "trl==1.12.0", "--python", "p"], "--stack and --python exclude each other"),
        (["rnu"], "unknown command 'rnu'; did you mean run"),
        (["bless"], "unknown command 'bless'; did you mean maintain bless"),
        (["help"], "unknown command 'help'; did you mean --help?"),
        (["--hepl"], "unknown option '--hepl'; did you mean --help?"),
        (["list", "--json"], "unknown option '--json', and none is like it"),
        (["run", "--cell", f"{DDP}/cup"], "did you mean cpu?"),
        (["audit", "--python", "/bin/ls"], "/bin/ls is not a Python interpreter"),
        (["xyz"], "unknown command 'xyz': one of diagnose, check, "),
        (["run", "--no-resume"], "unknown option '--no-resume'; did you mean --resume"),
        (["run", "zero3_dummy_loss"], f"write --failure zero3_dummy_loss for the failure, or --cell {SHOWN} for"),
        (["run", "--cell", "zero3_dummy_loss"], f"is a failure, not a cell; this cell shows it: {SHOWN}"),
        (["check", "Qwen/Qwen2.5-0.5B"], "`hf download Qwen/Qwen2.5-0.5B config.json --local-dir model`"),
        (["run", "-"], "unexpected argument '-' (see faultline run --help)"),
        (["check", "-"], "- does not exist"),
        (["check", "~nobody/m.py:build"], "~nobody/m.py does not exist"),
        (["diagnose", "/dev/zero"], "/dev/zero can't be read: it is a device"),
        (["maintain", "replay", "--change", "/dev/zero"], "/dev/zero can't be read: /dev/zero is not a file"),
        *((["explore", "--minutes", each], "--minutes must be a number above 0") for each in ("0", "nan", "inf")),
        (["export"], ": export needs CELL (see faultline export --help)"),
        (["bisect"], ": bisect needs --package (see"),
        (["run", "--shard"], ": run needs --shard with a value (see"),
        (["bisect", "--package", "trl", "--others", "none"], '"dated", "fixed"'),
    ],
)
def test_a_mistake_is_one_line(refused, argv, words):
    assert words in refused(*argv)


EARLY = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "faultline.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
runpy.run_module("faultline", run_name="__main__")
"""


def test_a_command_that_is_interrupted_while_it_starts_says_nothing():
    done = python("-c", EARLY)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


@pytest.mark.parametrize("verb", FOLDER_VERBS)
def test_a_folder_without_a_run_is_refused(refused, tmp_path, verb):
    (tmp_path / "loop").symlink_to("loop")
    for folder in (tmp_path, tmp_path / "loop"):
        assert "is not the results folder of a run" in refused(*verb.split(), str(folder))


@pytest.fixture
def interrupted(tmp_path):
    """The folder of a run that was cut short after one cell."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    [cell, *_] = selection.select(FAILURES, Selection(failure=("zero3_dummy_loss",), strategy=("zero3",)))
    stack = packages.stack_name(packages.versions())
    folder.describe(cells=(cell.id,), stack=stack, finished=False)
    entry = judged(cell, Judgement(Outcome.RAISES, "empty-gradient"), **packages.versions())
    folder.cells.write_text(json.dumps(entry.as_json()) + "\n")
    return folder


@pytest.mark.parametrize("newest", ["2026-01-02T00-00-00", "stack-2026-01-02T00-00-00"])
def test_the_newest_run_is_reported_on_whichever_stack(asked, interrupted, results_elsewhere, newest):
    """Breaks when results that were just printed are said not to be there."""
    results_elsewhere.mkdir()
    for name in {"2026-01-01T00-00-00", "stack-2026-01-01T12-00-00", newest}:
        shutil.copytree(interrupted.path, results_elsewhere / name)
    code, out, errors = asked("report")
    assert code == 0 and not errors and f"/{newest}/cells.jsonl" in out


def test_a_difference_of_rules_steers_no_terminal(asked, interrupted):
    """Breaks when the run of somebody else can clear the screen."""
    interrupted.describe(finished=True)
    interrupted.cells.write_text(interrupted.cells.read_text().replace("empty-gradient", "\x9b2Jplanted"))
    code, out, _ = asked("maintain", "bless", str(interrupted.path), "--check")
    assert code == 1 and "planted" in out and plain(out) == out


CHAOS = "run is a chaos run: its ranks were killed on purpose"


@pytest.mark.parametrize(
    ("words", "about", "why"),
    [
        (["bless"], {}, "can't bless a run that was interrupted"),
        (["bless", "--failure", "zero3_dumy_loss"], {"finished": True}, "did you mean zero3_dummy_loss"),
        *((words, {"finished": True, "kind": "chaos"}, CHAOS) for words in (["bless"], ["readmes"], DURATIONS)),
    ],
)
def test_nothing_is_learned_from_a_run_that_is_none(refused, interrupted, words, about, why):
    """Breaks when half a run, or ranks that were killed on purpose, end up in rules, READMEs, durations or a merge."""
    interrupted.describe(**about)
    verb, *options = words
    assert why in refused("maintain", verb, str(interrupted.path), *options)


@pytest.fixture
def project(tmp_path):
    """A copy of what the command line and pytest read, to break."""
    for name in ("faultline", "repros", "ds_configs", "fixtures", "tests/support"):
        shutil.copytree(paths.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pytest.ini", "requirements.txt"):
        shutil.copy(paths.ROOT / name, tmp_path)
    return tmp_path


def collected(place, *options):
    """Let pytest collect the cells in a folder; gives its exit code and what it says."""
    answer = python("-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *options, cwd=place)
    text = answer.stdout + answer.stderr
    assert "Traceback" not in text and "conftest.py:" not in text, f"a mistake is shown as a defect:\n{text}"
    return answer.returncode, text.splitlines()


def test_pytest_refuses_an_unknown_device_in_one_line():
    """Breaks when a typo in an option of pytest is a traceback for each failure, or collects as if nothing was."""
    code, lines = collected(paths.ROOT, "repros", "--device", "cud")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert [line for line in lines if line] == ["ERROR: unknown device 'cud'; did you mean cuda?"]


@pytest.mark.slow
def test_a_broken_file_is_one_line(project):
    """Breaks when a typo in the rules is a traceback or hides other failures' cells, or one in a config ends in one."""
    (project / "repros" / "zero3_dummy_loss" / "expected.toml").write_text('[[rule]]\noutcom = "raises"\n')
    code, lines = collected(project, "repros/zero3_dummy_loss", "repros/zero_double_reduction")
    assert code == pytest.ExitCode.INTERRUPTED
    wanted = "repros/zero3_dummy_loss/expected.toml: rule 1: unknown key 'outcom'; did you mean outcome"
    assert [line.startswith(wanted) for line in lines].count(True) == 1, "the mistake is not named, or not just once"
    assert any(line.startswith("repros/zero_double_reduction/failure.py::broken/") for line in lines)

    def refused(*words):
        answer = python("-m", "faultline", *words, cwd=project)
        assert answer.returncode == EXIT_USAGE and not answer.stdout and not [*project.glob("results/*")]
        [line] = answer.stderr.splitlines()
        return line

    assert refused("run", "--failure", "zero3_dummy_loss").startswith(f"faultline: {wanted}")
    (project / "ds_configs" / "zero2.json").write_text('{\n  "zero_optimization": {\n    "stage": 2,\n  }\n}\n')
    line = refused("list")
    assert line.startswith("faultline: zero2.json: not a usable DeepSpeed config") and "line " in line


@pytest.mark.slow
def test_torch_itself_says_that_there_is_no_gpu(refused, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "torch sees no GPU here" in refused("run", "--device", "cuda")


@pytest.mark.parametrize("words", ["run --device cuda", f"run --cell {DDP}/cuda", "prove repeat --device cuda"])
def test_no_other_way_leads_to_cuda_without_a_gpu(refused, monkeypatch, words):
    def without_gpu(command, **_):
        assert "torch.cuda.is_available()" in command[-1]
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(engines, "ask", without_gpu)
    assert "torch sees no GPU here" in refused(*words.split())


def test_an_error_of_the_machine_is_one_line_and_tells_of_no_results(monkeypatch, refused):
    """Breaks when a file in the place of a folder ends in a traceback, or nothing was measured and it is said where."""
    for error in (PermissionError(13, "Permission denied", "/x"), NotADirectoryError(20, "Not a directory", "/x")):
        monkeypatch.setattr(command, "show", Mock(side_effect=error))
        assert refused("show", "zero3_dummy_loss") == f"faultline: {error.strerror}: /x"
    dispatcher = "Could not run 'aten::empty'. " + "CPU: registered at /build/RegisterCPU.cpp:30798 " * 300
    monkeypatch.setattr(command, "show", Mock(side_effect=UsageError(dispatcher)))
    line = refused("show", "zero3_dummy_loss")
    assert line.startswith("faultline: Could not run 'aten::empty'.") and len(line) < 1100, "a long error isn't cut"


@pytest.mark.parametrize("words", [[], ["fleet"], ["maintain"]])
def test_without_a_command_the_help_is_shown_as_a_mistake(asked, words):
    """Breaks when a script that lost its words goes on as if it had been answered, or somebody new isn't helped."""
    code, out, errors = asked(*words)
    assert code == EXIT_USAGE and not errors and out.startswith("Usage: faultline")
