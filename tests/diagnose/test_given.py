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


@pytest.mark.parametrize("words", [[""], [" \n"], ["train.log", ""]])
def test_an_empty_text_is_said_to_be_empty(asked, words):
    """Breaks when a shell variable that isn't set is a file without a name that can't be read."""
    assert asked("diagnose", *words) == (2, "", [f"faultline: {GIVEN} is empty"])


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ([], "add --strategy and --checkpointing."),
        (["--strategy", "ddp"], "add --checkpointing."),
        (["--checkpointing", "off"], "add --strategy."),
        (["--strategy", "ddp", "--checkpointing", "off"], None),
    ],
)
def test_only_the_option_that_lacks_is_asked_for(asked, options, advice):
    """Breaks when an answer asks for what was given."""
    words = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices"
    out = asked("diagnose", words, *options)[1]
    assert out.startswith(("Not in the catalogue", "Probably not in the catalogue")), out
    assert [line.rpartition("how it was run, ")[2] for line in out.splitlines() if "how it was run" in line] == (
        [advice] if advice else []
    )


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
