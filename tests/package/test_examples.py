"""The examples: the pytest plugin's, run as its README says where only the package is installed, and KubeRay's.

rayjob-v1.json is the schema of RayJob in KubeRay 1.7.0 (Apache License 2.0), without descriptions and status, and of a
pod only with its usual fields, to which examples/kuberay.yaml holds.
"""

import json
import re
import shlex
import shutil
import sysconfig
from functools import partial
from pathlib import Path

import jsonschema
import pytest
import yaml

from faultline.base.paths import ROOT
from faultline.cli import app
from faultline.fleet.cluster import SETTINGS

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


@pytest.mark.slow
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


@pytest.mark.slow
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


SCHEMA = json.loads((Path(__file__).parent / "rayjob-v1.json").read_text())
MANIFEST = yaml.safe_load((ROOT / "examples" / "kuberay.yaml").read_text())
CLUSTER = MANIFEST["spec"]["rayClusterSpec"]
GROUPS = [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]


def test_it_holds_to_the_schema():
    """Breaks when KubeRay would refuse the manifest, passes over a field of it, or the schema lets all pass."""
    jsonschema.validate(MANIFEST, SCHEMA)
    for change in ({"entryPoint": "x"}, {"backoffLimit": "2"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(MANIFEST | {"spec": MANIFEST["spec"] | change}, SCHEMA)


def test_every_node_has_the_settings_of_ray_and_shared_memory():
    """Breaks when a setting is new and nodes run without it, or Ray and NCCL have the 64 MiB of a container."""
    for group in GROUPS:
        [container] = group["template"]["spec"]["containers"]
        assert {each["name"]: each["value"] for each in container["env"]} == SETTINGS
        [name] = [each["name"] for each in container["volumeMounts"] if each["mountPath"] == "/dev/shm"]
        [volume] = [each for each in group["template"]["spec"]["volumes"] if each["name"] == name]
        assert volume["emptyDir"]["medium"] == "Memory"
    # It runs a command that there is, with the pinned Ray; without a token, who reaches the head can run anything.
    words = shlex.split(MANIFEST["spec"]["entrypoint"])
    assert CLUSTER["authOptions"] == {"mode": "token"}
    app.app().parse_args(words[1:], exit_on_error=False, print_error=False)
    assert f"ray=={CLUSTER['rayVersion']}\n" in (ROOT / "requirements-fleet.txt").read_text()
