"""The example of the pytest plugin, run as its README says, where the package is installed and no clone is."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

from faultline.base.paths import ROOT
from faultline.stacks.environments import run_uv

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
def environment(wheel, tmp_path_factory):
    """An environment with the wheel, and with what is installed here beside it: pytest and the stack."""
    folder = tmp_path_factory.mktemp("environment")
    python = folder / "bin" / "python"
    run_uv(["venv", "--python", sys.executable, str(folder)])
    run_uv(["pip", "install", "--no-deps", "--python", str(python), str(wheel)])
    [packages] = folder.glob("lib/*/site-packages")
    (packages / "here.pth").write_text(sysconfig.get_path("purelib"))
    return folder


@pytest.fixture
def run(environment, tmp_path):
    """Run pytest in a copy of the example."""
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project, ignore=shutil.ignore_patterns("__pycache__"))
    (project / "conftest.py").write_text(SEEN)
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "VIRTUAL_"))}

    def run(*words):
        command = [environment / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", *words]
        path = {"PATH": f"{environment / 'bin'}:{usual['PATH']}", "COLUMNS": "200"}
        return subprocess.run(
            command, cwd=project, env=usual | path, capture_output=True, text=True, timeout=300, check=False
        )

    run.project = project
    return run


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
    packages = (run.project / "sessions").read_text().splitlines()
    assert len(packages) == 3, "the controller and both workers"
    assert all("site-packages" in file for file in packages), "the clone was used"
    assert not (run.project / ".faultline").exists()


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
