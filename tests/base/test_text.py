"""Texts: lines on a terminal and in a file, numbers and links in few characters."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline.base import text as base_text
from faultline.base.console import write_line

LINE = (
    "  verified     a forward pass through the modules of these parameters, with weight 0 in the loss  [18 of 18 cells]"
)
COMMAND = (
    "Reproduce      faultline run --failure zero3_dummy_loss --strategy zero3 --checkpointing reentrant,non-reentrant"
)


def written(text, width=60, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    write_line(console, text)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_line_is_broken_between_words_on_a_terminal(width):
    """Breaks when a terminal breaks a word in two, or a further line begins left of the first."""
    lines = written(LINE, width)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(LINE.split())
    assert all(line.startswith("    ") for line in lines[1:])


@pytest.mark.parametrize(("text", "terminal"), [(LINE, False), (COMMAND, True), ("fits", True)])
def test_what_is_copied_stays_one_line(text, terminal):
    """Breaks when a command that is copied, or a line in a file, is broken."""
    assert written(text, terminal=terminal) == [text]


@given(st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"])), st.integers(30, 200))
def test_law_no_word_is_lost_or_broken(text, width):
    assert " ".join(written(text, width)).split() == text.split()


@pytest.mark.parametrize(
    ("share", "words"),
    [(2.1, "210 %"), (0.5, "50 %"), (1.06e-5, "0.0011 %"), (1234.0, "120000 %"), (math.inf, "inf"), ("nan", "nan")],
)
def test_a_share_is_told_in_percent(share, words):
    """Breaks when an error reads as a power of ten, or as a percentage of what is no number."""
    assert base_text.percent(share) == words


def test_a_link_is_told_by_its_repository():
    assert base_text.short_link("https://github.com/huggingface/trl/issues/2719#x") == "trl#2719"
    assert base_text.short_link("https://example.org/a/b") == "example.org"
