"""What a check found, as one file: run from an empty folder, it shows the same without this repository."""

import json
import subprocess
import sys

import pytest

from faultline.base.paths import ROOT
from faultline.check import script, target
from tests.support.night import sampled

pytestmark = pytest.mark.slow

SPEECH = {"architectures": ["Speech2TextForConditionalGeneration"], "model_type": "speech_to_text"}
EXPERTS = ["--only", "left", "--only", "right"]


@pytest.fixture
def exported(run, tmp_path):
    """The script of what a function of own_models.py or a config does in one cell."""

    def exported(what, strategy, mode="off"):
        (tmp_path / "config.json").write_text(json.dumps(SPEECH))
        given = tmp_path / "config.json" if what == SPEECH else f"{ROOT}/tests/support/own_models.py:{what}"
        chosen, file = script.pick_result([run(what, strategy, mode)]), tmp_path / "repro.py"
        file.write_text(script.write(target.parse(str(given), ""), chosen, file, sys.executable))
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
    file = exported("experts", "fsdp2")
    assert "faultline." not in file.read_text()
    code, printed = ran(file)
    assert code == 0 and printed.endswith("REPRODUCED\n"), printed
    assert "gradient of right.weight: 0.08212 in one process" in printed
    code, printed = ran(file, *EXPERTS)
    assert code == 0 and "of head.weight" not in printed, f"with all other weights frozen it is there too: {printed}"
    code, printed = ran(file, "--only", "head")
    assert code == 1 and printed.endswith("NOT REPRODUCED\n"), printed


@pytest.mark.parametrize(
    ("what", "strategy", "mode", "shown"),
    sampled(
        [
            ("normalised", "fsdp1-full", "off", "buffer layers.3.running_mean: "),
            ("normalised", "zero2", "off", "buffer layers.3.running_mean: "),
            (SPEECH, "fsdp1-full", "reentrant", "got weight of shape [0]"),
        ],
        every=3,
    ),
)
def test_buffers_and_errors_are_shown_too(exported, what, strategy, mode, shown):
    """Breaks when only gradients are compared, an engine's template fails, or a config can't be built again."""
    code, printed = ran(exported(what, strategy, mode))
    assert code == 0 and shown in printed, printed


@pytest.mark.nightly  # a hang takes two minutes
@pytest.mark.parametrize(
    ("what", "strategy", "shown"),
    [("of_one_rank", "zero2", ("rank 0 waits in", "rank 1 waits in", "in asking")), ("killed", "ddp", ())],
)
def test_a_hang_and_a_crash_are_shown(exported, what, strategy, shown):
    """Breaks when the script of a hang waits for ever itself, or leaves its ranks behind; or when that of a crash takes
    a rank that was killed for one that did what one process does."""
    code, printed = ran(exported(what, strategy))
    assert code == 0 and "\nREPRODUCED\n" in printed and all(words in printed for words in shown), printed
