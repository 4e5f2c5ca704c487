"""What may be given in the place of a log: the text of an error, and what is taken for a mistyped name."""

import subprocess
import sys

import pytest

import faultline
from faultline.base.paths import ROOT
from faultline.diagnose.command import GIVEN, pasted
from tests.support.logs import TWO_DEVICES

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


def test_a_sentence_that_is_glued_to_an_error_is_nothing_to_search_for():
    """Breaks when the words to search for are somebody's own, which no other page has."""
    message = f"{ERROR} Multiple gradient reduction is currently not supported"
    for behind in ("I use zero3 and MiniCPM-V with LoRA", ". It came with MiniCPM-V"):
        search = faultline.diagnose(f"{message}{behind}").diagnosis.search
        assert search.startswith("AssertionError ") and search.endswith('currently not supported"'), search
    assert "in this place" in faultline.diagnose(f"{message} in this place").diagnosis.search


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Same for me. Error: RuntimeError: no", "RuntimeError: no"),
        ("Error: torch.cuda.OutOfMemoryError: no", "torch.cuda.OutOfMemoryError: no"),
        ("It ends. Error: no such option", "Error: no such option"),
        ("MyError: RuntimeError: no", "MyError: RuntimeError: no"),
    ],
)
def test_a_label_before_an_error_is_no_type(text, error):
    assert faultline.diagnose(text).diagnosis.cause.text == error


@pytest.mark.parametrize(
    ("said", "modes"),
    [
        ("I tried `use_reentrant=False` but same.", set()),
        ("We have also tried checkpoint with use_reentrant=True! It runs with use_reentrant=False.", {"non-reentrant"}),
        ("It runs with `use_reentrant=True`. I tried use_reentrant=False.", {"reentrant"}),
        ("--use_reentrant=False", {"non-reentrant"}),
    ],
)
def test_a_mode_that_somebody_tried_is_not_the_runs(said, modes):
    """Breaks when a remedy that did not help is taken for what the run had, which excludes the failure."""
    for text in (f"{said}\n{ERROR}", f"{ERROR} {said}"):
        assert faultline.diagnose(text).diagnosis.hints.modes == modes


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
    out = asked("diagnose", TWO_DEVICES, *options)[1]
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
    words = ["sh", "-c", '"$@" <&-', "sh", sys.executable, "-m", "faultline", "diagnose"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("faultline: no log given") and done.stderr.count("\n") == 1
