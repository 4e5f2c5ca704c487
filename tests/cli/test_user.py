"""As somebody does who has just cloned it: bin/faultline, in the folder of their own files, which nobody here wrote."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from faultline.base.paths import ROOT
from tests.support.clone import cloned
from tests.support.program import python

TRAIN = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.vision = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.text(x)

def build():
    return Net(), lambda model, batch: model(batch).sum(), torch.arange(32.0).reshape(4, 8)

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(Net())
    for step in range(3):
        model(torch.ones(2, 8)).sum().backward()
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What a clone has, with what isn't committed yet, and an environment."""
    made = tmp_path_factory.mktemp("some where") / "faultline"
    cloned(made, "--cached", "--others", "--exclude-standard")
    (made / ".venv").symlink_to(sys.prefix)
    return made


@pytest.fixture
def call(clone, tmp_path, monkeypatch):
    """Call bin/faultline in a folder that is not the clone; gives its exit code, and what it printed."""
    monkeypatch.chdir(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def call(*words, program=clone / "bin" / "faultline"):
        done = subprocess.run([str(program), *words], capture_output=True, text=True, env=environment, check=False)
        assert "faultline/cli/app.py" not in done.stderr, f"a mistake is told by a traceback:\n{done.stderr}"
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.slow
def test_it_is_called_by_its_path_or_a_link_from_any_folder(call, clone, tmp_path):
    """Breaks when only who stands in the clone can ask anything, or a json.py beside somebody's log is imported."""
    code, answer, errors = call("list", "--failure", "zero3_dummy_loss", "--ids")
    assert (code, errors) == (0, "") and answer.startswith("zero3_dummy_loss/")
    (tmp_path / "json.py").write_text("raise SystemExit(9)")
    (tmp_path / "faultline.py").write_text("raise SystemExit(9)")
    (tmp_path / "faultline").symlink_to(clone / "bin" / "faultline")
    assert call("list", "--failure", "zero3_dummy_loss", "--ids", program=tmp_path / "faultline") == (0, answer, "")


def test_without_an_environment_it_says_how_to_get_one(call, tmp_path):
    copy = tmp_path / "bare" / "bin" / "faultline"
    copy.parent.mkdir(parents=True)
    shutil.copy(ROOT / "bin" / "faultline", copy)
    code, _, errors = call("list", program=copy)
    advice = f"faultline: there is no environment yet; make it with: make -C '{tmp_path}/bare' setup\n"
    assert (code, errors) == (2, advice)


@pytest.mark.slow
def test_the_log_of_a_run_that_died_is_diagnosed(call, clone, tmp_path):
    """What torchrun prints of two ranks, with its summary and all."""
    (tmp_path / "train.py").write_text(TRAIN)
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "train.py")
    log = python(*run, cwd=tmp_path).stderr
    (tmp_path / "train.log").write_text(log)
    code, answer, errors = call("diagnose", "train.log")
    assert code == 0, log + answer + errors
    # The net is no Gemma3: what it has in common with it is all that may be said.
    assert answer.startswith("One of several  the same mechanism: parameters that got no gradient"), answer
    assert "  It is ddp_unused_vision_tower if " in answer.splitlines()[1] and "only followed: " in answer
    # A command in the answer runs where it is pasted, and so does a command in what that one prints.
    [more] = re.findall(r"^ *Details +(.*)$", answer, re.MULTILINE)
    assert more == f"'{clone}/bin/faultline' show ddp_unused_vision_tower"
    done = subprocess.run(more, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = re.findall(r"^ *(\S.*faultline' run .*)$", done.stdout, re.MULTILINE)[0]
    listed = again.replace(" run ", " list --ids ", 1)  # the same cells, without running them
    done = subprocess.run(listed, shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "ddp_unused_vision_tower/broken" in done.stdout


OPTIONS = ("--strategy", "ddp", "--checkpointing", "off", "--workers", "1")


@pytest.mark.slow
def test_a_script_is_checked(call, clone, tmp_path):
    """The script trains where it is run by itself, which nobody asked for here."""
    (tmp_path / "train.py").write_text(TRAIN)
    code, answer, errors = call("check", "train.py:build", *OPTIONS)
    assert code == 1, answer + errors
    assert "vision.weight, vision.bias: never get a gradient" in answer
    [results] = re.findall(r"results: (.*)", answer)
    assert Path(results).is_file() and clone / "results" in Path(results).parents
    assert {file.name for file in tmp_path.iterdir()} <= {"train.py", "__pycache__"}, "it left something behind"


@pytest.mark.slow
@pytest.mark.nightly
def test_a_check_runs_where_the_scripts_own_packages_are(call, tmp_path):
    """Breaks when a script is asked for in an environment of its own, and imported in another one."""
    (tmp_path / "train.py").write_text(TRAIN.replace("import torch\n", "import torch\nimport only_there\n", 1))
    python("-m", "venv", "--without-pip", "env", cwd=tmp_path)
    [site] = tmp_path.glob("env/lib/*/site-packages")
    (site / "beside.pth").write_text(sysconfig.get_path("purelib"))  # the libraries are there once already
    (site / "only_there.py").touch()
    options = ("--strategy", "ddp-find-unused", "--checkpointing", "off", "--workers", "1")
    code, answer, errors = call("check", "train.py:build", *options)
    assert (code, answer) == (2, ""), errors
    assert "train.py:build: No module named 'only_there': if it is your own file, put its folder" in errors
    assert "--stack makes an environment that has it" in errors
    code, answer, errors = call("check", "train.py:build", *options, "--python", "env/bin/python")
    assert code == 0, answer + errors
    assert "with --python env/bin/python" in answer
