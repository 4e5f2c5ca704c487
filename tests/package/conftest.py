"""The wheel, which several tests install into environments of their own."""

import os
import subprocess
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


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    """Install into an empty environment; gives a function that runs one of its programs in a folder."""

    def install(*what):
        folder = tmp_path_factory.mktemp("environment")
        run_uv(["venv", "--python", sys.executable, str(folder)])
        run_uv(["pip", "install", "--python", str(folder / "bin" / "python"), *what])
        here = ("PYTHON", "PYTEST", "VIRTUAL_")
        shown = {name: value for name, value in os.environ.items() if not name.startswith(here)}
        shown |= {"PATH": f"{folder / 'bin'}:{shown['PATH']}", "COLUMNS": "200"}

        def program(name, *words, cwd, stdin=""):
            command = [folder / "bin" / name, *map(str, words)]
            options = {"capture_output": True, "text": True, "timeout": 600, "check": False}
            return subprocess.run(command, cwd=cwd, env=shown, input=stdin, **options)

        return program, folder

    return install
