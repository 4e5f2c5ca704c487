"""Texts: lines on a terminal and in a file, numbers and links in few characters, names that were meant."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline import strategies
from faultline.base import text as base_text
from faultline.base.console import write_line
from faultline.base.packages import NEEDED
from faultline.base.text import is_slip, similar_names
from faultline.catalogue.loading import failures
from faultline.strategies import naming

LINE = "  verified     a forward pass through the modules of parameters, with weight 0 in the loss  [18 of 18 cells]"
COMMAND = "Reproduce      faultline run --failure zero3_dummy_loss --strategy zero3 --checkpointing off,non-reentrant"


def written(text, width=60, terminal=True):
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    write_line(console, text)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_line_is_broken_between_words_on_a_terminal(width):
    """Breaks when a terminal breaks a word in two, or a further line begins left of the first."""
    lines = written(LINE, width)
    assert max(map(len, lines)) <= width
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


STRATEGIES = strategies.names()


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("gpu", ("cpu", "cuda"), ["cuda"]),
        ("deepspeed", STRATEGIES, ["zero*"]),
        ("ZeRO-3", STRATEGIES, ["zero3"]),
        ("FSDP2", STRATEGIES, ["fsdp2"]),
        ("grpo", failures(), ["grpo_lora_no_grad"]),
        ("double_reduction", failures(), ["zero_double_reduction"]),
        ("diagnos", ("diagnose", "check"), ["diagnose"]),
        *((name, STRATEGIES, []) for name in ("nope", "foo", "x", "")),
        *((name, [other], []) for name, other in (("seen", "server"), ("rank", "trains"), ("fp16", "fsdp2"))),
    ],
)
def test_what_people_call_it_is_understood_and_nothing_suggested_where_nothing_is_like_it(name, known, meant):
    """Breaks when three letters of four suggest a word that nobody meant."""
    assert similar_names(name, [*known], naming.aliases() | {"gpu": "cuda"}) == meant


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=20), unique=True, max_size=10))
def test_a_suggestion_is_a_known_name_and_a_known_name_suggests_itself(name, known):
    assert set(similar_names(name, known)) <= {*known}
    for each in known:
        assert each in similar_names(each, known)


def test_a_name_of_any_length_has_no_likeness():
    """Breaks when a million letters take hours: each of them is left out once."""
    assert similar_names("x" * 1_000_000, STRATEGIES) == [] and not is_slip("t" * 1_000_000, NEEDED)


def test_a_slip_of_the_pen_is_seen_and_another_package_is_none():
    """Breaks when a package that nobody meant is asked of an index, or a real one can't be asked about."""
    slips = ["tlr", "trll", "tl", "transformer", "transfromers", "deepsped", "dataset", "PFET"]
    others = ["torchao", "torchvision", "xformers", "bitsandbytes", "liger-kernel", "vllm", "numpy"]
    assert [name for name in (*slips, *others) if is_slip(name, NEEDED)] == slips
