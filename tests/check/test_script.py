"""What a check found, as one file: run from an empty folder, it shows the same without this repository."""

import json
import subprocess
import sys

import pytest

from faultline.base.errors import NotExportable, UsageError
from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.check import cell as checking
from faultline.check import script, target
from faultline.runs.runner import References

pytestmark = pytest.mark.slow

OWN = ROOT / "tests" / "support"
SPEECH = {"architectures": ["Speech2TextForConditionalGeneration"], "model_type": "speech_to_text"}
NORM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.norm(self.first(x)))


def build():
    rows = {"x": torch.randn(8, 8, generator=torch.Generator().manual_seed(0)), "y": torch.arange(8) % 4}
    return Model(), lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]), rows
"""
CRASH = f"""{NORM}

def killed():
    import os, signal

    model, loss, rows = build()

    def die(module, args):
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    model.register_forward_pre_hook(die)
    return model, loss, rows
"""
EXPERTS = ["--only", "left", "--only", "right"]


@pytest.fixture
def exported(shared_server, tmp_path):
    """The script of what a function of own_models.py or a config does in one cell."""

    def exported(what, strategy, mode="off"):
        if isinstance(what, dict):
            (tmp_path / "config.json").write_text(json.dumps(what))
        (tmp_path / "norm.py").write_text(CRASH)
        folder = tmp_path if str(what).startswith("norm.py") else OWN
        given = str(tmp_path / "config.json") if isinstance(what, dict) else f"{folder / what}"
        model, cell = target.parse(given, ""), Cell("check", "model", strategy, mode, "fp32", 2)
        result = checking.run(model, shared_server, References(tmp_path), cell)
        file = tmp_path / "repro.py"
        file.write_text(script.write(model, script.chosen([result]), file, sys.executable))
        return file

    return exported


def ran(file, *options):
    """Its exit code and what it prints, in an empty folder and without this repository on the path."""
    empty = file.parent / "empty"
    empty.mkdir(exist_ok=True)
    words = [sys.executable, "-P", file, *options]
    done = subprocess.run(words, cwd=empty, capture_output=True, text=True, check=False, timeout=900)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.nightly
def test_a_silent_difference_is_shown_beside_one_process(exported):
    """Breaks when the script of a silent finding shows no difference, or needs what is only here."""
    file = exported("own_models.py:experts", "fsdp2")
    assert "faultline." not in file.read_text()
    code, printed = ran(file)
    assert code == 0 and printed.endswith("REPRODUCED\n"), printed
    assert "gradient of right.weight: 0.08212 in one process" in printed
    code, printed = ran(file, *EXPERTS)
    assert code == 0 and "of head.weight" not in printed, f"with all other weights frozen it is there too: {printed}"
    code, printed = ran(file, "--only", "head")
    assert code == 1 and printed.endswith("NOT REPRODUCED\n"), printed


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("what", "strategy", "mode", "shown"),
    [
        ("norm.py:build", "fsdp1-full", "off", "buffer norm.running_mean: "),
        ("norm.py:build", "zero2", "off", "buffer norm.running_mean: "),
        (SPEECH, "fsdp1-full", "reentrant", "got weight of shape [0]"),
    ],
)
def test_buffers_and_errors_are_shown_too(exported, what, strategy, mode, shown):
    """Breaks when only gradients are compared, an engine's template fails, or a config can't be built again."""
    code, printed = ran(exported(what, strategy, mode))
    assert code == 0 and shown in printed, printed


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("zero2", marks=pytest.mark.nightly)])
def test_a_hang_is_shown_where_each_rank_waits(exported, strategy):
    """Breaks when the script of a hang waits for ever itself, or leaves its ranks behind."""
    code, printed = ran(exported("own_models.py:checkpoints_by_itself_and_waits", strategy))
    assert code == 0 and "\nREPRODUCED\n" in printed, printed
    assert all(f"rank {rank} waits in" in printed for rank in (0, 1)) and "in wait" in printed


@pytest.mark.nightly
def test_a_crash_is_shown(exported):
    """Breaks when the script of a crash takes a rank that was killed for one that did what one process does."""
    code, printed = ran(exported("norm.py:killed", "ddp"))
    assert code == 0 and "\nREPRODUCED\n" in printed, printed


def test_what_agrees_is_not_exported(exported):
    """Breaks when a script is written that shows nothing."""
    with pytest.raises(UsageError, match="nothing to export"):
        exported("own_models.py:healthy", "ddp")


def test_what_a_script_cannot_show_is_refused(exported, monkeypatch):
    """Breaks when the interpreter's reason not to build a model again is lost."""
    refused = script.Written(refused="some of its blocks share weights")
    monkeypatch.setattr(script, "_written", lambda *given: refused)
    with pytest.raises(NotExportable, match="share weights"):
        exported("own_models.py:experts", "fsdp2")
