"""The functions of the package: what they take, what they give, and that importing costs nothing."""

import functools
import inspect
import json
import sys

import pytest

import faultline
from faultline import api
from faultline.base.errors import Refused, UsageError
from faultline.base.paths import ROOT
from faultline.check import command, target
from faultline.ranks import start
from faultline.runs import measurement
from faultline.runs.storage import RunFolder
from tests.support import entries
from tests.support.program import python

LOG = ROOT / "fixtures" / "logs" / "bunny-146.log"
FUNCTIONS = ("audit", "check", "diagnose")


def build(): ...


IMPORTS = """
import sys
for before in {before}:
    for name in [name for name in sys.modules if name.partition(".")[0] == "faultline"]:
        del sys.modules[name]
    exec(before)
    import faultline, faultline.check.view, faultline.api as api
    from faultline import check
    print({same} and check is api.check)
"""


def test_the_functions_keep_their_names_whatever_is_imported_before():
    """Breaks when the room of a name is bound where its function was: `'module' object is not callable`."""
    before = [
        "",
        "import faultline.check.command, faultline.diagnose.command, faultline.audit.command",
        "from faultline.check import command; from faultline.audit import view; from faultline.diagnose import lines",
        "import faultline.cli.app",
        "from faultline import check, diagnose, audit",
    ]
    same = " and ".join(f"faultline.{name} is api.{name}" for name in FUNCTIONS)
    assert python("-c", IMPORTS.format(before=before, same=same)).stdout.split() == ["True"] * len(before)


def test_importing_the_package_imports_nothing_else():
    """Breaks when `import faultline` takes longer than it should in somebody's test suite, or needs a library."""
    code = "import sys; before = set(sys.modules); import faultline; print(*set(sys.modules) - before)"
    assert {
        name for name in python("-c", code).stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names
    } == {"faultline"}
    assert {*faultline._PUBLIC} == {*dir(faultline)}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = faultline.nothing


def test_a_diagnosis_prints_as_the_command_does_and_takes_a_text(asked, tmp_path):
    result = faultline.diagnose(LOG)
    assert (0, f"{result}\n", []) == asked("diagnose", str(LOG))
    assert (result.answer, result.failure, result.sure) == ("named", "zero_double_reduction", "certain")
    assert json.loads(asked("diagnose", str(LOG), "--json")[1]) == json.loads(json.dumps(result.as_json()))
    assert repr(result) == "DiagnoseResult('zero_double_reduction', sure='certain')"
    result = faultline.diagnose(LOG.read_text())
    assert result.failure == "zero_double_reduction" and "\n  the given text:3-10  AssertionError" in str(result)
    line = "RuntimeError: something that nobody has seen yet"
    assert faultline.diagnose(line).answer == "not in the catalogue"
    (tmp_path / line).write_text(LOG.read_text())
    assert faultline.diagnose(f"{tmp_path}/{line}").failure == "zero_double_reduction", "it is a file's name as well"


@pytest.mark.parametrize(
    ("log", "reason"),
    [("my log.txt", "my log.txt can't be read"), (ROOT, "name the logs in it"), ("", "the log is empty")],
)
def test_what_is_no_log_is_refused(log, reason):
    """Breaks when a typo in a file's name is answered as a log without an error."""
    with pytest.raises(faultline.UsageError, match=reason):
        faultline.diagnose(log)


@pytest.mark.slow
def test_an_audit_prints_as_the_command_does(asked, tmp_path):
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    result = faultline.audit(tmp_path)
    assert asked("audit", str(tmp_path))[1] == f"{result}\n"
    assert json.loads(asked("audit", str(tmp_path), "--json")[1]) == json.loads(json.dumps(result.as_json()))
    assert repr(result) == f"AuditResult(certain=[], applies=[], findings={len(result.findings)})"
    assert asked("audit", str(tmp_path), "--all")[1] == f"{faultline.audit(tmp_path, everything=True)}\n"
    with pytest.raises(faultline.UsageError, match="no requirements"):
        faultline.audit(ROOT / "docs")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Every cell of a check diverges, in a folder of the test's own."""
    monkeypatch.setattr(command.storage, "new_run", lambda kind: RunFolder(tmp_path))

    def run_batches(batches, workers, engine, on_result):
        [part] = batches
        for cell in part.cells:
            on_result(part, entries.entry(cell, "diverges", "differs", "unexpected failure"))

    monkeypatch.setattr(measurement, "run_batches", run_batches)


def test_a_check_prints_as_the_command_does(asked, measured):
    result = faultline.check(build, strategies="ddp,zero2", checkpointing=["off", "reentrant"])
    words = ("tests/api/test_api.py:build", "--strategy", "ddp,zero2", "--checkpointing", "off,reentrant")
    code, answer, _ = asked("check", *words)
    assert (code, answer) == (1, f"{result}\n") and "results: " in answer
    assert [cell.cell.strategy for cell in result.cells] == ["ddp", "ddp", "zero2", "zero2"]
    assert not result.agrees and result.ran and len(result.problems) == 1 and "4 of 4 configurations" in result.verdict
    assert json.loads(asked("check", *words, "--json")[1]) == json.loads(json.dumps(result.as_json()))
    assert repr(result) == f"CheckResult({words[0]!r}, agrees=False, cells=4)"
    one = str(faultline.check(build, "ddp", "off"))
    assert "✓ trains" in answer and "✓ trains" not in one, "a table of one cell says what the lines below it say"
    assert "≠ diverges (differs)  ddp" in one


def outer():
    def build(): ...

    return build


def needs_two(one, two, three=3, *rest, **others): ...


class Builds:
    def build(self): ...


@pytest.mark.parametrize("value", [None, 3, ["train.py", "eval.py"]])
@pytest.mark.parametrize("asked", [faultline.check, faultline.diagnose, faultline.audit])
def test_a_value_of_another_type_is_a_usage_error(asked, value):
    """Breaks when a program that catches FaultlineError ends with a TypeError from deep inside."""
    with pytest.raises(faultline.UsageError, match=f"not a {type(value).__name__}: "):
        asked(value)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (outer(), "outer.<locals>.build is no function at the top level of a file"),
        (lambda: None, "<lambda> is no function at the top level"),
        (Builds, "Builds is no function"),
        (Builds().build, "Builds.build is no function"),
        (functools.partial(needs_two, 1, 2), "functools.partial.* is no function"),
        (needs_two, "needs_two is called without arguments, and needs one, two"),
        (eval("lambda: 0", {"__name__": "x"}), "no function at the top level"),
    ],
)
def test_what_no_rank_can_load_is_refused(build, reason):
    with pytest.raises(faultline.UsageError, match=reason):
        faultline.check(build)


def test_a_function_is_looked_for_where_it_stands():
    """Breaks when a wrapper is looked for in place of what it wraps, or what was typed in without a word."""
    scope = {"__name__": "__main__"}
    exec(compile("def build(): ...", "<stdin>", "exec"), scope)
    with pytest.raises(UsageError, match="build stands in no file"):
        target.target_name(scope["build"])

    @functools.wraps(build)
    def wrapper(): ...

    assert target.target_name(wrapper) == "tests/api/test_api.py:build"


def test_what_can_not_be_asked_is_refused():
    with pytest.raises(faultline.UsageError, match="unknown precision 'fp8'"):
        faultline.check(build, precision=["fp32", "fp8"])
    with pytest.raises(faultline.UsageError, match="stack and python exclude each other"):
        faultline.check(build, stack="trl==1.12.0", python="python3")


def test_installed_packages_are_not_where_ranks_look_beside_the_stack(monkeypatch, tmp_path):
    """Breaks when the torch of this process gets into the ranks of another environment."""
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), *sys.path, str(tmp_path / "lib" / "site-packages")])
    folders = target.search_path()
    assert str(tmp_path) in folders and not [name for name in folders if "site-packages" in name]
    assert not [name for name in folders if name.startswith(str(ROOT / "faultline"))]


def test_the_page_has_every_name_and_every_argument():
    page = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in faultline._PUBLIC if f"`{name}" not in page and f"faultline.{name}" not in page]
    arguments = {each for name in FUNCTIONS for each in inspect.signature(getattr(api, name)).parameters}
    missing += [name for name in arguments if f"`{name}" not in page and f"`*{name}" not in page]
    assert not missing


SCRIPT = """
import faultline
from models import pair

def build():
    return pair()

if __name__ == '__main__':
    result = faultline.check(build, strategies="ddp", checkpointing="off")
    print(result.verdict)
"""
MODELS = """
import torch

def pair():
    return torch.nn.Linear(4, 2), lambda model, batch: model(batch).square().mean(), torch.arange(16.0).view(4, 4) / 16
"""


def test_no_check_begins_in_a_rank(monkeypatch):
    """Breaks when each rank starts ranks that start ranks."""
    monkeypatch.setenv(start.IN_RANKS, "1")
    with pytest.raises(Refused, match=r"the file calls faultline\.check while it is loaded: call it under"):
        faultline.check(build)


@pytest.mark.slow
def test_a_script_checks_its_own_function_and_not_itself(tmp_path):
    """Breaks when a rank looks for modules elsewhere than the script does."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "models.py").write_text(MODELS)
    (tmp_path / "script.py").write_text(SCRIPT)
    run = "import runpy, sys; sys.path.insert(0, 'lib'); runpy.run_path('script.py', run_name='__main__')"
    done = python("-c", run, cwd=tmp_path, PYTHONPATH=str(ROOT))
    answer = "The configuration that can be run trains like a single process"
    assert done.returncode == 0 and answer in done.stdout, done.stdout + done.stderr
