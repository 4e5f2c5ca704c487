"""What may be given in the place of a log: the text of an error, and what is taken for a mistyped name."""

import os
import subprocess
import sys

import pytest

from faultline.base.paths import ROOT
from faultline.diagnose.command import GIVEN, pasted

ERROR = "AssertionError: The parameter 291 has already been reduced. Gradient computed twice for this partition."


@pytest.mark.parametrize("words", [[ERROR], ERROR.split(), [f"[rank1]: {ERROR}"], [f"step 3\n{ERROR}\n"]])
def test_an_error_is_read_from_the_command_line(asked, words):
    """Breaks when somebody must make a file of one line, or quote it."""
    code, out, errors = asked("diagnose", *words)
    assert code == 0 and not errors and out.startswith("zero_double_reduction")
    assert f"{GIVEN}:" in out


@pytest.mark.parametrize(
    "words",
    [["train.log"], ["my train.log"], ["train.log", "rank1.log"], ["RuntimeError.log"], ["Errors of june.txt"], ["-"]],
)
def test_a_mistyped_name_is_no_error(words):
    assert pasted(words) == ""


def test_a_file_is_read_whatever_it_is_called(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ValueError: x").write_text(f"{ERROR}\n")
    assert asked("diagnose", "ValueError: x")[1].startswith("zero_double_reduction")


def test_a_closed_input_is_a_missing_log():
    """Breaks when a service without an input gets a traceback."""
    words = [sys.executable, "-m", "faultline", "diagnose"]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *words],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.startswith("faultline: no log given") and done.stderr.count("\n") == 1
