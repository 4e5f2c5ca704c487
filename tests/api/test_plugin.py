"""The pytest plugin in projects of its users, each in a pytest process of its own."""

import os
import signal
import subprocess
import sys
import uuid

import psutil
import pytest

from faultline.base.paths import ROOT
from tests.support.waiting import wait_until

# Says what pytest's process has imported, after a file that marks nothing and at the end of a session.
CONFTEST = """
import sys

def show(when):
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("faultline.")}
    print(f"\\n{when}:", *sorted(rooms | ({"torch"} & {*sys.modules})))

def pytest_collectreport(report):
    if report.nodeid == "plain_test.py":
        show("at first")

def pytest_sessionfinish(session):
    show("imported")
    print(*session.config.getini("markers"), sep="\\n")
"""
MODELS = """
import torch

def net():
    return torch.nn.Linear(4, 2)

def batch():
    return torch.arange(16.0).view(4, 4) / 16

def loss(model, batch):
    return model(batch).square().mean()

def around(model, batch):
    return loss(getattr(model, "module", model), batch)
"""
USED = ["base", "cells", "check", "observations", "pytest_plugin", "runs"]


class Project:
    """A folder with tests, and pytest in it."""

    def __init__(self, folder):
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.write("conftest.py", CONFTEST)
        self.write("models.py", MODELS)

    def write(self, name, text):
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    def start(self, *words):
        command = [sys.executable, "-m", "pytest", "-p", "faultline.pytest_plugin", "-p", "no:cacheprovider", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200", "OF_THIS_TEST": self.mark}
        return subprocess.Popen(
            command, cwd=self.folder, env=environment, stdout=-1, stderr=-2, text=True, start_new_session=True
        )

    def run(self, *words):
        process = self.start(*words)
        return process.communicate(timeout=300)[0], process.returncode

    def nothing_is_left(self):
        """Wait until no process is left that descends from this project's pytest."""
        wait_until(lambda: not [*filter(self.ours, psutil.process_iter())], 60)

    def ours(self, process):
        try:
            return process.environ().get("OF_THIS_TEST") == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


RIGHT = """
import pytest

@pytest.mark.faultline(strategies=["ddp", "zero3"], checkpointing="off", world="2,4")
@pytest.mark.faultline(strategies="ddp", checkpointing="off", precision="bf16")
def test_model():
    import torch

@pytest.mark.faultline(strategies="fsdp2", checkpointing="off,non-reentrant")
def build(layers=2): ...

def test_another():
    pass
"""
MARK, TEST = "@pytest.mark.faultline", "def test_model(): ..."
DDP = f"{MARK}(strategies='ddp')\n"
# What is in a file that can't be collected, and what has to be said of it.
MISTAKES = {
    f"{MARK}(strategies='zero4')\n{TEST}": "test_model: unknown strategy 'zero4'; did you mean",
    f"{MARK}(strategy='ddp')\n{TEST}": "test_model: unknown argument 'strategy'; did you mean strategies?",
    f"{MARK}('ddp')\n{TEST}": f'test_model: name what the mark is given: {MARK[1:]}(strategies="ddp,zero3")',
    f"{MARK}(world=3)\n{TEST}": "test_model: world size 3: the global batch of 4 rows divides over 1, 2 or 4 ranks",
    f"{DDP}def test_it(tmp_path, x): ...": (
        "test_it: it takes no fixtures, and asks for tmp_path, x; it is called in the ranks"
    ),
    f"{DDP}@pytest.mark.parametrize('x', [1])\n{TEST}": "test_model: it can't have the mark parametrize",
    f"class TestIt:\n    {DDP}    def test_it(self): ...": "test_it: it is a method, which needs an instance",
    f"{DDP}class TestIt:\n    {TEST}": "TestIt: TestIt is no function at the top level of a file",
    f"pytestmark = {MARK[1:]}(strategies='zero9')\n{TEST}": "test_model: unknown strategy 'zero9'",
}


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.mark.slow
def test_each_cell_is_an_item_and_each_mistake_an_error_of_collecting(project):
    """Breaks when a typo leaves a model untested and the suite is green, or collecting imports torch or needs it."""
    project.write("plain_test.py", "def test_it(tmp_path): ...")
    project.write("test_right.py", RIGHT)
    for number, text in enumerate(MISTAKES):
        project.write(f"test_{number}.py", f"import pytest\n{text}")
    answer, code = project.run("-q", "--collect-only", "--strict-markers", "-W", "error")
    assert code == 2 and "Traceback" not in answer and "INTERNALERROR" not in answer, answer
    assert [line for line in answer.splitlines() if "::" in line and "ERROR" not in line] == [
        "plain_test.py::test_it",
        "test_right.py::test_model[ddp-off-bf16-2]",
        "test_right.py::test_model[ddp-off-fp32-2]",
        "test_right.py::test_model[ddp-off-fp32-4]",
        "test_right.py::test_model[zero3-off-fp32-2]",
        "test_right.py::test_model[zero3-off-fp32-4]",
        "test_right.py::build[fsdp2-off-fp32-2]",
        "test_right.py::build[fsdp2-non-reentrant-fp32-2]",
        "test_right.py::test_another",
    ]
    messages = dict(part.split(".py ", 1) for part in answer.split("ERROR collecting test_")[1:])
    assert len(messages) == len(MISTAKES)
    assert [words for number, words in enumerate(MISTAKES.values()) if words not in messages[str(number)]] == []
    assert "at first: pytest_plugin\n" in answer, "a project that marks nothing pays for it"
    assert "\nfaultline(strategies, checkpointing, precision, world)" in answer
    [imported] = [line for line in answer.splitlines() if line.startswith("imported:")]
    assert "torch" not in imported


RUN = """
import pytest

ddp = pytest.mark.faultline(strategies="ddp", checkpointing="off")

@pytest.mark.faultline(strategies="ddp", checkpointing="off,reentrant")
def test_right():
    from elsewhere import net
    from .near import batch, loss

    return net(), loss, batch()

@ddp
def test_wrong():
    from . import near

    return near.net(), near.around, near.batch()

@ddp
@pytest.mark.xfail(strict=True)
def test_known():
    from . import near

    return near.net(), near.around, near.batch()

@ddp
@pytest.mark.xfail
def test_known_to_fail():
    raise ValueError("\\n::error::planted")

@ddp
@pytest.mark.skipif(True, reason="not today")
def test_skipped(): ...

@pytest.mark.faultline(strategies="ddp", checkpointing="off", precision="fp32,bf16")
def test_fails():
    return 1 / 0
"""
NOTED = """
import os, pytest

def noted(name):
    from models import batch, loss, net
    with open(name, "a") as file:
        print("rank" if "RANK" in os.environ else "alone", file=file)
    return net(), loss, batch()

@pytest.mark.faultline(strategies="ddp", checkpointing="off")
def test_one():
    return noted("one")

@pytest.mark.faultline(strategies="ddp,zero1,fsdp2", checkpointing="off")
def test_three():
    return noted("three")
"""


@pytest.mark.slow
def test_a_cell_passes_fails_is_skipped_or_says_what_is_wrong_with_the_function(project, monkeypatch):
    """Breaks too when -k chooses other cells, or the single process is measured for each cell of a function."""
    project.write("pytest.ini", "[pytest]\npythonpath = src\n")
    project.write("src/elsewhere.py", "from models import net")
    project.write("tests/__init__.py", "")
    project.write("tests/near.py", MODELS)
    project.write("tests/test_it.py", RUN)
    project.write("test_noted.py", NOTED)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")  # which takes a line of an exception for a command
    answer, code = project.run("-rA", "-W", "error", "-k", "not bf16")
    assert code == 1 and "\n: :error::planted" in answer and "\n::" not in answer, answer
    ends = {line.split("::")[1]: line.split()[0] for line in answer.splitlines() if "::" in line and line[0] in "PFXS"}
    assert {name.partition(" ")[0]: end for name, end in ends.items()} == {
        "test_right[ddp-off-fp32-2]": "PASSED",
        "test_wrong[ddp-off-fp32-2]": "FAILED",
        "test_known[ddp-off-fp32-2]": "XFAIL",
        "test_known_to_fail[ddp-off-fp32-2]": "FAILED",  # xfail expects a difference, and nothing was compared
        "test_fails[ddp-off-fp32-2]": "FAILED",
        "test_one[ddp-off-fp32-2]": "PASSED",
        "test_three[ddp-off-fp32-2]": "PASSED",
        "test_three[zero1-off-fp32-2]": "PASSED",
    }
    lacks = "the model has no gradient_checkpointing_enable"
    assert f": test_right[ddp-reentrant-fp32-2]: {lacks}\n" in answer and "not today" in answer
    wrong = answer.split("_ test_wrong[")[1].split("_ test_fails[")[0]
    assert "\ndiverges (differs): " in wrong and "first differs: step 1, in the backward pass" in wrong
    assert "likely: ddp_forward_bypasses_wrapper" in wrong
    assert "check tests/test_it.py:test_wrong --strategy ddp --checkpointing off\n" in wrong
    failed = answer.split("_ test_fails[")[1].split("\n===")[0]
    assert "tests/test_it.py:test_fails: " in failed and "return 1 / 0" in failed and "pytest_plugin.py" not in failed
    [imported] = [line for line in answer.splitlines() if line.startswith("imported:")]
    assert {*USED} < {*imported.split()} and "torch" not in imported
    one, three = ((project.folder / name).read_text().split() for name in ("one", "three"))
    assert one.count("alone") == three.count("alone") > 0
    assert (one.count("rank"), three.count("rank")) == (2, 8), "FSDP2 with its root as the only unit, too"
    project.nothing_is_left()


SLEEPS = """
import os, pytest, time

@pytest.mark.faultline(strategies="ddp", checkpointing="off")
def test_model():
    with open("started", "w") as file:
        file.write(os.environ.get("PYTEST_XDIST_WORKER", ""))
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "end"),
    [
        (("-x",), signal.SIGINT),
        *(
            pytest.param(words, end, marks=pytest.mark.nightly)
            for words, end in [
                (("-n", "2"), "worker"),
                (("-n", "2"), signal.SIGINT),
                (("-x",), signal.SIGTERM),
                (("-x",), signal.SIGKILL),
            ]
        ),
    ],
)
def test_no_process_outlives_a_session_that_is_cut_short(project, words, end):
    """Breaks when a rank server and its ranks go on in the background, on somebody's laptop or in CI."""
    project.write("test_it.py", SLEEPS)
    process = project.start(*words)
    wait_until(lambda: (project.folder / "started").exists() or process.poll() is not None, 120)
    assert process.poll() is None, process.communicate()[0]
    if end == "worker":
        workers = [each for each in psutil.Process(process.pid).children() if "-c" in each.cmdline()]
        for each in workers:
            each.kill()
        answer = process.communicate(timeout=120)[0]
        assert "crashed" in answer or "not properly terminated" in answer
    else:
        os.kill(process.pid, end)
        process.wait(60)
    project.nothing_is_left()
