"""The example of the pytest plugin, run as its README says, where the package is installed and no clone is."""

import re
import shutil
import sysconfig
from functools import partial

import pytest

from faultline.base.paths import ROOT

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "pytest_project"
SEEN = """
import sys

def pytest_sessionfinish(session):
    assert "torch" not in sys.modules
    with open("sessions", "a") as file:
        print(sys.modules["faultline"].__file__, file=file)
"""


@pytest.fixture(scope="module")
def pytest_there(wheel, installed):
    """Pytest of an environment with the wheel, and with what is installed here beside it: pytest and the stack."""
    program, folder = installed("--no-deps", str(wheel))
    [packages] = folder.glob("lib/*/site-packages")
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    return partial(program, "python", "-m", "pytest", "-p", "no:cacheprovider")


@pytest.fixture
def run(pytest_there, tmp_path):
    """Run pytest in a copy of the example."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "conftest.py").write_text(SEEN)
    return partial(pytest_there, cwd=project)


def test_the_example_passes_on_two_workers_of_xdist(run):
    done = run("-n", "2", "-v", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    ends = re.findall(r"\b(PASSED|XFAIL)\b.* test_model\.py::(\S+)", done.stdout)
    assert sorted(ends) == [
        ("PASSED", "test_model[ddp-off-fp32-2]"),
        ("PASSED", "test_model[fsdp2-off-fp32-2]"),
        ("PASSED", "test_model[zero3-off-fp32-2]"),
        ("XFAIL", "test_loss_around_the_wrapper[ddp-off-fp32-2]"),
    ]
    packages = (run.keywords["cwd"] / "sessions").read_text().splitlines()
    assert len(packages) == 3, "the controller and both workers"
    assert all("site-packages" in file for file in packages), "the clone was used"
    assert not (run.keywords["cwd"] / ".faultline").exists()


def test_the_mistake_of_the_example_is_explained_as_the_page_shows(run):
    done = run("--runxfail", "-k", "around")
    assert done.returncode == 1
    page = (ROOT / "docs" / "pytest.md").read_text()
    shown = page.split("test_model.py::test_loss_around_the_wrapper[ddp-off-fp32-2]\n")[1].split("```")[0]
    printed = done.stdout.splitlines()
    for line in filter(lambda line: line != "...", shown.splitlines()):
        assert any(each.startswith(line.removesuffix("...")) for each in printed), line
    again = "faultline check test_model.py:test_loss_around_the_wrapper --strategy ddp --checkpointing off"
    assert f"  reproduce: {again}\n" in done.stdout
