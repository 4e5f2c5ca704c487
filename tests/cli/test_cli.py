"""The command line: whatever is wrong with a question, the answer is one clear line and exit code 2."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faultline import strategies
from faultline.audit import command as audit_command
from faultline.base import packages, paths
from faultline.base.errors import EXIT_USAGE, UsageError
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Outcome
from faultline.cells import expected, selection
from faultline.cells.expected import Expectation
from faultline.cells.selection import Selection
from faultline.matrix import command
from faultline.runs import devices, engines, results, storage
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement
from faultline.runs.storage import RunFolder
from faultline.stacks import requests

FOLDER_VERBS = ("maintain bless", "maintain readmes", "report", "maintain durations", "maintain merge")
FAILURES = loading.failures()
SHOWN = "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu"
DDP = "zero3_dummy_loss/broken/ddp/off/fp32/w2"


@pytest.fixture(autouse=True)
def results_elsewhere(tmp_path, monkeypatch):
    """No test writes to the real results; and nothing here may start ranks."""
    root = tmp_path / "results"
    monkeypatch.setattr(paths, "RESULTS", root)
    monkeypatch.setattr(storage.new_run, "__defaults__", (root,))
    monkeypatch.setattr(storage.latest_run, "__defaults__", (root,))
    monkeypatch.setattr(storage.runs, "__defaults__", (root,))

    def run_parts(*_):
        raise AssertionError("cells were run although the question was a mistake")

    monkeypatch.setattr(engines, "run_parts", run_parts)
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


@pytest.mark.parametrize("verb", ["run", "list", "maintain repeat"])
@pytest.mark.parametrize(
    ("option", "value", "nearest"),
    [
        ("--failure", "zero_double_reductoin", "zero_double_reduction"),
        ("--strategy", "zero33", "zero3"),
        ("--strategy", "ddp,fdsp2", "fsdp2"),
        ("--checkpointing", "reentrent", "reentrant"),
        ("--variant", "brokn", "broken"),
        ("--precision", "bf61", "bf16"),
        ("--device", "cud", "cuda"),
        ("--device", "cpu,cuda", "cpu"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(refused, verb, option, value, nearest):
    line = refused(*verb.split(), option, value)
    assert line.startswith(f"faultline: unknown {option[2:]} ") and "did you mean" in line
    assert nearest in line.split("did you mean")[1], "the name that was meant is not named"


@pytest.mark.parametrize("option", ["--strategy", "--stack"])
def test_a_name_that_is_like_none_is_refused_with_all_there_are(refused, tmp_path, option):
    """Breaks when somebody who writes `foo` is asked whether it was meant to be the first of the names."""
    log = tmp_path / "train.log"
    log.write_text("ValueError: no\n")
    names = strategies.names() if option == "--strategy" else list(requests.named())
    assert refused("diagnose", str(log), option, "foo").endswith(f" 'foo': one of {', '.join(names)}")


def test_a_name_that_is_like_none_of_many_is_refused_with_some_of_them(refused):
    names = [*FAILURES]
    line = refused("list", "--failure", "xyz")
    assert line.endswith(f"'xyz': one of {', '.join(names[:10])} and {len(names) - 10} more")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["list", "--world", "3"], "world size 3: the global batch of 4 rows divides over 1, 2 or 4 ranks"),
        (["list", "--world", "2,x"], "--world takes numbers, not '2,x'"),
        (["list", "--world", "two"], "--world takes numbers, not 'two'"),
        (["list", "--cell", "ddp"], "not a cell: 'ddp' (expected failure/variant/strategy/checkpointing/precision/wN/"),
        (["run", "--workers", "0"], "--workers must be at least 1, not 0"),
        (["run", "--shard", "5/4"], "--shard takes I/N with 1 <= I <= N, for instance 1/4, not '5/4'"),
        (["run", "--shard", "0/4"], "--shard takes I/N"),
        (["run", "--shard", "half"], "--shard takes I/N"),
        (["run", "--world", "4", "--strategy", "single"], "no cell matches all of these options"),
        (["run", "--cell", f"{DDP}/cpu,{DDP}/cuda"], "give cells of one device at a time"),
        (["run", "--cell", f"{DDP}/cpu", "--strategy", "zero3"], "leave out --strategy"),
        (["list", "--cell", f"{DDP}/cpu", "--device", "cuda", "--world", "2"], "leave out --world and --device"),
        (["run", "--resume"], "there is no run yet"),
        (["run", "--stack", ""], "a stack is a name from stacks/"),
        (["is-safe", "trl==1.12.0", "--base", ""], "a stack is a name from stacks/"),
        (["reproduce", "zero3_dummy_loss", "--device", "gpu"], "unknown device 'gpu'"),
        (
            ["timeline", "--write", "--since", "2025-06-01"],
            "--write needs all months that are recorded, and 2025-03-01",
        ),
        (["maintain", "bless"], "there is no run yet"),
        (["maintain", "readmes"], "there is no run yet"),
        (["report"], "there is no run yet"),
        (["maintain", "durations"], "there is no run yet"),
        (["show", "zero3_dumy_loss"], "did you mean zero3_dummy_loss?"),
        (["show", "zero3_"], "6 failures begin with 'zero3_': zero3_accumulation_outside_forward, zero3_dummy_loss"),
        (["list", "--ids", "--left-out"], "--ids and --left-out exclude each other"),
        (["bisect", "--package", "trl", "--introduced", "--fixed"], "--introduced and --fixed exclude each other"),
        (["bisect", "--package", "trl"], "bisect needs a failure"),
        (["bisect", "--package", "trl", "--failure", "zero3_dumy_loss"], "did you mean zero3_dummy_loss"),
        (["check", "m.py:f", "--stack", "trl==1.12.0", "--python", "p"], "--stack and --python exclude each other"),
        (["rnu"], "unknown command 'rnu'; did you mean run"),
        (["bless"], "unknown command 'bless'; did you mean maintain bless"),
        (["maintain", "clean-results", "--keep", "0"], "--keep must be at least 1, not 0"),
        (["maintain", "blss"], "unknown command 'maintain blss'; did you mean maintain bless"),
        (["help"], "unknown command 'help'; did you mean --help?"),
        (["--hepl"], "unknown option '--hepl'; did you mean --help?"),
        (["list", "--json"], "unknown option '--json', and none is like it"),
        (["show", "zero3*"], "did you mean zero3_accumulation_outside_forward or "),
        (["run", "--cell", f"{DDP}/cup"], "did you mean cpu?"),
        (["audit", "--python", "/bin/ls"], "/bin/ls is not a Python interpreter"),
        (["audit", "--failure", "zero3_dumy_loss"], "did you mean zero3_dummy_loss"),
        (["xyz"], "unknown command 'xyz': one of diagnose, check, "),
        (["run", "--strategies", "ddp"], "unknown option '--strategies'; did you mean --strategy"),
        (["run", "--no-resume"], "unknown option '--no-resume'; did you mean --resume"),
        (["run", "zero3_dummy_loss"], f"write --failure zero3_dummy_loss for the failure, or --cell {SHOWN} for"),
        (["run", "--cell", "zero3_dummy_loss"], f"is a failure, not a cell; this cell shows it: {SHOWN}"),
        (["export", "zero3_dummy_loss"], f"is a failure, not a cell; this cell shows it: {SHOWN}"),
        (["maintain", "score", "zero3_dummy_loss"], "unexpected argument 'zero3_dummy_loss'"),
        (["check", "Qwen/Qwen2.5-0.5B"], "`hf download Qwen/Qwen2.5-0.5B config.json --local-dir model`"),
        (["run", "ddp"], "unexpected argument 'ddp' (see faultline run --help)"),
        (["run", "-"], "unexpected argument '-' (see faultline run --help)"),
        (["diagnose", "a.log", "--jsn"], "unknown option '--jsn'; did you mean --json"),
        (["show"], ": show needs FAILURE (see faultline show --help)"),
        (["bisect"], ": bisect needs --package (see"),
        (["run", "--shard"], ": run needs --shard with a value (see"),
        (["bisect", "--package", "trl", "--others", "none"], '"dated", "fixed"'),
    ],
)
def test_a_mistake_is_one_line(refused, argv, words):
    assert words in refused(*argv)


@pytest.mark.parametrize("verb", FOLDER_VERBS)
def test_a_folder_without_a_run_is_refused(refused, tmp_path, verb):
    for path in (tmp_path, tmp_path / "missing"):
        assert "is not the results folder of a run" in refused(*verb.split(), str(path))


@pytest.mark.parametrize("measured", [True, False])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_error_tells_of_measured_cells_only_if_there_are_any(monkeypatch, asked, measured, error):
    """Breaks when somebody whose run ended before its first cell looks for results, or one with results doesn't."""

    def run_parts(parts, workers, run, engine):
        [part] = parts
        judged = Judgement(Outcome.RAISES, "empty-gradient")
        if measured:
            part.done(results.result(part.cells[0], judged, Ended([]), {}, Expectation(), "expected"))
        raise error

    vars(error).pop("__notes__", None)
    monkeypatch.setattr(engines, "run_parts", run_parts)
    code, _, errors = asked("run", "--cell", f"{DDP}/cpu")
    assert code in (2, 130) and ("the results so far are" in errors[-1]) == measured, errors
    assert f"; {int(measured)} of 1 cell ran; " in errors[-1]
    assert errors[-1].endswith("the same command with --resume goes on")


def test_an_error_of_a_command_that_measures_nothing_tells_of_no_results(monkeypatch, refused):
    def read_project(*_):
        raise PermissionError(13, "Permission denied", "/root")

    monkeypatch.setattr(audit_command, "read_project", read_project)
    assert refused("audit", "/") == "faultline: Permission denied: /root"


@pytest.fixture
def interrupted(tmp_path):
    """The folder of a run that was cut short after one cell."""
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    [cell, *_] = selection.select(FAILURES, Selection(("zero3_dummy_loss",), strategy=("zero3",)))
    stack = packages.stack_name(packages.versions())
    folder.describe(cells=(cell.id,), stack=stack, finished=False)
    judged = Judgement(Outcome.RAISES, "empty-gradient")
    entry = results.result(cell, judged, Ended([]), packages.versions(), Expectation(), "expected")
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


def test_an_interrupted_run_is_not_blessed(refused, interrupted):
    assert "can't bless a run that was interrupted" in refused("maintain", "bless", str(interrupted.path))


def test_a_run_with_invalid_cells_is_not_blessed(refused, interrupted):
    interrupted.describe(finished=True)
    [entry] = interrupted.results()
    interrupted.cells.write_text(json.dumps({**entry.as_json(), "outcome": "invalid"}) + "\n")
    assert f"can't bless a run with invalid cells: {entry.cell.id}" in refused(
        "maintain", "bless", str(interrupted.path)
    )


@pytest.mark.parametrize("verb", ["bless", "readmes", "durations", "merge"])
def test_nothing_is_learned_from_a_chaos_run(refused, interrupted, verb):
    """Breaks when ranks that were killed on purpose end up in rules, READMEs, durations or a merged run."""
    interrupted.describe(finished=True, kind="chaos")
    assert "run is a chaos run: its ranks were killed on purpose" in refused("maintain", verb, str(interrupted.path))


def test_an_unknown_failure_is_not_blessed(refused, interrupted):
    interrupted.describe(finished=True)
    line = refused("maintain", "bless", str(interrupted.path), "--failure", "zero3_dumy_loss")
    assert "did you mean zero3_dummy_loss" in line


@pytest.fixture
def repros(tmp_path, monkeypatch):
    """A copy of repros/ from which rules are read."""
    copy = tmp_path / "repros"
    shutil.copytree(paths.REPROS, copy)
    monkeypatch.setattr(expected, "REPROS", copy)
    expected.rules.cache_clear()
    yield copy
    expected.rules.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ('[[rule]]\noutcom = "raises"\n', "rule 1: unknown key 'outcom'; did you mean outcome?"),
        ('[[rule]]\noutcome = "rises"\n', "unknown outcome 'rises'; did you mean raises"),
        ('[[rule]]\nstrategy = "zero33"\noutcome = "raises"\n', "unknown strategy 'zero33'; did you mean zero3"),
        (
            '[[rule]]\noutcome = "raises"\nsignature = "empty"\n',
            "unknown signature 'empty'; did you mean empty-gradient",
        ),
        (
            '[[rule]]\nvariant = "persistent"\nstrategy = "ddp"\noutcome = "raises"\n',
            "rule 1: no cell of zero3_dummy_loss has all of variant persistent, strategy ddp",
        ),
        ("[[rule]\n", "expected.toml: "),
    ],
)
def test_a_mistake_in_expected_toml_is_refused_before_anything_runs(refused, repros, rule, words):
    (repros / "zero3_dummy_loss" / "expected.toml").write_text(rule)
    line = refused("run", "--failure", "zero3_dummy_loss")
    assert "zero3_dummy_loss/expected.toml" in line and words in line


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of what the command line reads, to break."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("faultline", "repros", "ds_configs", "fixtures"):
        shutil.copytree(paths.ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def collected(project):
    """Let pytest collect the copy's cells; gives its exit code and what it says."""
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(paths.ROOT / name, project)

    def collect(*options):
        words = [sys.executable, "-m", "pytest", "repros", "--collect-only", "-p", "no:cacheprovider", *options]
        answer = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
        text = answer.stdout + answer.stderr
        assert "Traceback" not in text and "conftest.py:" not in text, f"a mistake is shown as a defect:\n{text}"
        return answer.returncode, text.splitlines()

    return collect


def test_pytest_refuses_an_unknown_device_in_one_line(collected):
    """Breaks when a typo in an option of pytest is a traceback for each failure, or collects as if nothing was."""
    code, lines = collected("--device", "cud")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert [line for line in lines if line] == ["ERROR: unknown device 'cud'; did you mean cuda?"]


@pytest.mark.slow
def test_pytest_names_a_mistake_in_expected_toml(project, collected):
    """Breaks when a typo in the rules is a traceback, or when it hides the cells of other failures."""
    file = project / "repros" / "zero3_dummy_loss" / "expected.toml"
    rules = file.read_text()
    file.write_text('[[rule]]\noutcom = "raises"\n')
    try:
        code, lines = collected()
    finally:
        file.write_text(rules)
    assert code == pytest.ExitCode.INTERRUPTED
    wanted = "repros/zero3_dummy_loss/expected.toml: rule 1: unknown key 'outcom'; did you mean outcome"
    assert [line.startswith(wanted) for line in lines].count(True) == 1, "the mistake is not named, or not just once"
    assert any(line.startswith("repros/zero_double_reduction/failure.py::broken/") for line in lines)


def test_a_broken_deepspeed_config_is_one_line(project):
    file = project / "ds_configs" / "zero2.json"
    file.write_text('{\n  "zero_optimization": {\n    "stage": 2,\n  }\n}\n')
    answer = subprocess.run(
        [sys.executable, "-m", "faultline", "list"], cwd=project, capture_output=True, text=True, check=False
    )
    assert answer.returncode == EXIT_USAGE and not answer.stdout
    [line] = answer.stderr.splitlines()
    assert line.startswith("faultline: zero2.json: not a usable DeepSpeed config") and "line " in line


def without_gpu(command, **_):
    assert "torch.cuda.is_available()" in command[-1]
    return subprocess.CompletedProcess(command, 3)


@pytest.mark.slow
def test_cuda_without_a_gpu_is_refused(refused, monkeypatch):
    monkeypatch.setattr(devices, "ask", without_gpu)
    assert "torch sees no GPU here" in refused("run", "--device", "cuda")


@pytest.mark.slow
def test_torch_itself_says_that_there_is_no_gpu(refused, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "torch sees no GPU here" in refused("run", "--device", "cuda")


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--cell", f"{DDP}/cuda"],
        ["maintain", "repeat", "--device", "cuda"],
    ],
    ids=["cell", "repeat"],
)
def test_no_other_way_leads_to_cuda_without_a_gpu(refused, monkeypatch, argv):
    monkeypatch.setattr(devices, "ask", without_gpu)
    assert "torch sees no GPU here" in refused(*argv)


def test_a_file_that_can_not_be_written_is_one_line(asked, monkeypatch):
    """Breaks when a full disk, or a file in the place of a folder, ends in a traceback."""
    monkeypatch.setattr(command, "show", lambda *_: Path("/dev/null/results").mkdir())
    code, _, errors = asked("show", "zero3_dummy_loss")
    assert code == 2 and errors == ["faultline: Not a directory: /dev/null/results"], "nothing was measured"


def test_a_long_error_is_cut(asked, monkeypatch):
    """Breaks when twelve kilobytes of torch's dispatcher are printed as one line."""

    def fail(*_):
        raise UsageError("Could not run 'aten::empty'. " + "CPU: registered at /build/RegisterCPU.cpp:30798 " * 300)

    monkeypatch.setattr(command, "show", fail)
    code, _, [line] = asked("show", "zero3_dummy_loss")
    assert code == 2 and line.startswith("faultline: Could not run 'aten::empty'.") and len(line) < 1100


@pytest.mark.parametrize("words", [[], ["fleet"], ["maintain"]])
def test_without_a_command_the_help_is_shown_as_a_mistake(asked, words):
    """Breaks when a script that lost its words goes on as if it had been answered, or somebody new isn't helped."""
    code, out, errors = asked(*words)
    assert code == EXIT_USAGE and not errors and out.startswith("Usage: faultline")


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "--workers", "many"],
        ["run", "--workers"],
        ["run", "--resume=maybe"],
        ["maintain", "chaos", "--rate", "often"],
        ["maintain", "chaos", "--cells", "-1"],
    ],
)
def test_a_mistake_in_the_options_is_one_line_too(refused, argv):
    """Breaks when a usage or a traceback is printed instead of one clear line."""
    refused(*argv)
