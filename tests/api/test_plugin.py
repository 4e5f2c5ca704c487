"""The pytest plugin in projects of its users, each in a pytest process of its own."""

import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pytest

from faultline.base.paths import ROOT
from tests.support.night import sampled

# Says at the end of a session what pytest's process has imported.
CONFTEST = """
import sys

def pytest_sessionfinish(session):
    rooms = {name.split(".")[1] for name in sys.modules if name.startswith("faultline.")}
    print("\\nimported:", *sorted(rooms | ({"torch"} & {*sys.modules})))
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

    def left(self):
        """The processes that descend from this project's pytest, once those that end have had time to."""
        end = time.monotonic() + 60
        while (processes := [*filter(self.ours, psutil.process_iter())]) and time.monotonic() < end:
            time.sleep(0.2)
        return processes

    def ours(self, process):
        try:
            return process.environ().get("OF_THIS_TEST") == self.mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.mark.slow
def test_each_cell_is_an_item_and_collecting_imports_no_torch(project):
    project.write(
        "test_it.py",
        """
import pytest

@pytest.mark.faultline(strategies=["ddp", "zero3"], checkpointing="off", world="2,4")
@pytest.mark.faultline(strategies="ddp", checkpointing="off", precision="bf16")
def test_model():
    import torch

@pytest.mark.faultline(strategies="fsdp2", checkpointing="off,non-reentrant")
def build(layers=2): ...

def test_another():
    pass
""",
    )
    answer, code = project.run("--collect-only", "-q", "--strict-markers", "-W", "error")
    assert code == 0, answer
    lines = [line for line in answer.splitlines() if "::" in line]
    assert lines == [
        "test_it.py::test_model[ddp-off-bf16-2]",
        "test_it.py::test_model[ddp-off-fp32-2]",
        "test_it.py::test_model[ddp-off-fp32-4]",
        "test_it.py::test_model[zero3-off-fp32-2]",
        "test_it.py::test_model[zero3-off-fp32-4]",
        "test_it.py::build[fsdp2-off-fp32-2]",
        "test_it.py::build[fsdp2-non-reentrant-fp32-2]",
        "test_it.py::test_another",
    ]
    assert "torch" not in answer
    answer, _ = project.run("--collect-only", "-q", "-k", "zero3 and 4")
    assert [line for line in answer.splitlines() if "::" in line] == ["test_it.py::test_model[zero3-off-fp32-4]"]


@pytest.mark.slow
def test_a_project_that_marks_nothing_pays_nothing(project):
    project.write("test_it.py", "def test_it(tmp_path): ...")
    answer, code = project.run("-q", "-W", "error")
    assert code == 0 and "imported: pytest_plugin\n" in answer, answer
    assert "faultline(strategies, checkpointing, precision, world)" in project.run("--markers")[0]


MISTAKES = {
    "strategies='zero4'": "unknown strategy 'zero4'; did you mean",
    "strategy='ddp'": "unknown argument 'strategy'; did you mean strategies?",
    "'ddp'": 'name what the mark is given: pytest.mark.faultline(strategies="ddp,zero3")',
    "checkpointing='on'": "unknown checkpointing 'on'",
    "world=3": "world size 3: the global batch of 4 rows divides over 1, 2 or 4 ranks",
    "strategies='single', world=2": "no cell matches all of these options",
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    """What collecting says of one file for each mistake."""
    project = Project(tmp_path_factory.mktemp("mistakes"))
    for number, given in enumerate(MISTAKES):
        text = f"import pytest\n@pytest.mark.faultline({given})\ndef test_model(): ..."
        project.write(f"test_{number}.py", text)
    mark = "@pytest.mark.faultline(strategies='ddp')"
    project.write("test_fixture.py", f"import pytest\n{mark}\ndef test_model(tmp_path, x): ...")
    several = f"import pytest\n{mark}\n@pytest.mark.parametrize('x', [1])\ndef test_model(): ..."
    project.write("test_many.py", several)
    project.write("test_method.py", f"import pytest\nclass TestIt:\n    {mark}\n    def test_model(self): ...")
    project.write("test_class.py", f"import pytest\n{mark}\nclass TestIt:\n    def test_model(self): ...")
    module = "import pytest\npytestmark = pytest.mark.faultline(strategies='zero9')\ndef test_model(): ..."
    project.write("test_module.py", module)
    answer, code = project.run("-q", "--collect-only")
    assert code == 2 and "Traceback" not in answer and "INTERNALERROR" not in answer, answer
    return {part.split(".py ")[0]: part for part in answer.split("ERROR collecting test_")[1:]}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_a_mistake_in_the_mark_is_an_error_of_collecting(refusals, number):
    """Breaks when a typo leaves a model untested, and the suite is green."""
    assert f"test_model: {[*MISTAKES.values()][number]}" in refusals[str(number)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("fixture", "test_model: it takes no fixtures, and asks for tmp_path, x; it is called in the ranks"),
        ("many", "test_model: it can't have the mark parametrize"),
        ("method", "test_model: it is a method, which needs an instance"),
        ("class", "TestIt: TestIt is no function at the top level of a file"),
        ("module", "test_model: unknown strategy 'zero9'"),
    ],
)
def test_what_can_not_be_checked_is_an_error_of_collecting(refusals, file, reason):
    assert reason in refusals[file]


@pytest.mark.slow
def test_a_cell_passes_fails_is_skipped_or_says_what_is_wrong_with_the_function(project):
    project.write("pytest.ini", "[pytest]\npythonpath = src\n")
    project.write("src/elsewhere.py", "from models import net")
    project.write("tests/__init__.py", "")
    project.write("tests/near.py", MODELS)
    project.write(
        "tests/test_it.py",
        """
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
    return 1 / 0

@ddp
@pytest.mark.skipif(True, reason="not today")
def test_skipped(): ...

@ddp
def test_fails():
    return 1 / 0
""",
    )
    answer, code = project.run("-rA", "-W", "error")
    assert code == 1, answer
    ends = {line.split("::")[1]: line.split()[0] for line in answer.splitlines() if "::" in line and line[0] in "PFXS"}
    assert {name.partition(" ")[0]: end for name, end in ends.items()} == {
        "test_right[ddp-off-fp32-2]": "PASSED",
        "test_wrong[ddp-off-fp32-2]": "FAILED",
        "test_known[ddp-off-fp32-2]": "XFAIL",
        "test_known_to_fail[ddp-off-fp32-2]": "FAILED",  # xfail expects a difference, and nothing was compared
        "test_fails[ddp-off-fp32-2]": "FAILED",
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
    assert not project.left()


@pytest.mark.slow
def test_the_single_process_is_measured_once_for_a_function(project):
    text = """
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
    project.write("test_it.py", text)
    answer, code = project.run("-q")
    assert code == 0, answer
    one, three = ((project.folder / name).read_text().split() for name in ("one", "three"))
    assert one.count("alone") == three.count("alone") > 0
    assert (one.count("rank"), three.count("rank")) == (2, 8), "FSDP2 with its root as the only unit, too"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "end"),
    sampled(
        [
            (("-n", "2"), "worker"),
            (("-n", "2"), signal.SIGINT),
            (("-x",), signal.SIGTERM),
            (("-x",), signal.SIGINT),
            (("-x",), signal.SIGKILL),
        ],
        3,
    ),
)
def test_no_process_outlives_a_session_that_is_cut_short(project, words, end):
    """Breaks when a rank server and its ranks go on in the background, on somebody's laptop or in CI."""
    project.write(
        "test_it.py",
        """
import os, pytest, time

@pytest.mark.faultline(strategies="ddp", checkpointing="off")
def test_model():
    with open("started", "w") as file:
        file.write(os.environ.get("PYTEST_XDIST_WORKER", ""))
    time.sleep(600)
""",
    )
    process = project.start(*words)
    until = time.monotonic() + 120
    while not (project.folder / "started").exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.2)
    assert process.poll() is None, process.communicate()[0]
    if end == "worker":
        workers = [each for each in psutil.Process(process.pid).children() if "-c" in each.cmdline()]
        for each in workers:
            each.kill()
    else:
        os.kill(process.pid, end)
    if end == "worker":
        answer = process.communicate(timeout=120)[0]
        assert "crashed" in answer or "not properly terminated" in answer
    else:
        process.wait(60)
    assert not project.left()
