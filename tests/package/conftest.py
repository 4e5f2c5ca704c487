"""The wheel, which several tests install."""

import sys

import pytest

from faultline.base.paths import ROOT
from faultline.stacks.environments import run_uv


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    isolation = ["--no-build-isolation", "--python", sys.executable]  # what builds it is pinned with everything else
    run_uv(["build", "--wheel", *isolation, "--out-dir", str(folder), str(ROOT)])
    [file] = folder.glob("*.whl")
    return file
