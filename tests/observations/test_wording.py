"""Error texts: one error is known again whatever its numbers, addresses, paths and names, and no other for it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.text import one_line
from faultline.observations.wording import normalised, same_error, searchable

NUMBERS = st.one_of(st.integers(0, 10**9).map(str), st.floats(0, 1e9, allow_nan=False).map(repr))
PATHS = st.lists(st.from_regex(r"[a-z][\w-]{0,8}", fullmatch=True), min_size=2, max_size=5).map(
    lambda parts: "/" + "/".join(parts) + ".py"
)
NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), min_size=2, max_size=5).map(".".join)


@given(st.text() | st.text(alphabet="ab1./\\-_x#<>e+, "))
def test_twice_is_once(text):
    """Breaks when a replacement makes something that the next pass replaces."""
    assert normalised(normalised(text)) == normalised(text)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (NUMBERS, "The parameter {} has already been reduced"),
        (st.integers(0, 2**48).map(hex), "<object at {}> is gone"),
        (PATHS, 'File "{}", line 7'),
        (NAMES, "parameter {} is off"),
        (st.lists(st.integers(0, 99).map(str), min_size=1).map(" ".join), "indices without gradient: {}"),
        (st.lists(st.integers(0, 99).map(str), min_size=1).map(", ".join), "sizes [{}] differ"),
    ],
)
def test_what_differs_from_run_to_run_makes_no_difference(values, text):
    """Breaks when the same error of another parameter, file or process is taken for another one."""

    @given(values, values)
    def same(one, other):
        assert normalised(text.format(one)) == normalised(text.format(other))
        assert re.sub(r"\W", "", text.split("{")[0]) in re.sub(r"\W", "", normalised(text.format(one)))

    same()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("E: aten.mm.default: got mixed Tensor and DTensor, convert", 'E "got mixed Tensor and DTensor, convert"'),
        ("RuntimeError: 'weight' must be 2-D", "RuntimeError \"'weight' must be 2-D\""),
        ("E: The size of tensor a (0) must match b (64) at dimension 1", 'E "The size of tensor a" "must match b"'),
        ("E: [Errno 2] No such file or directory: '/a/b'", 'E "No such file or directory'),
        ("E: Attempting to unscale FP16 gradients.", 'E "Attempting to unscale FP16 gradients."'),
        ("E: expected BFloat16 but found Float", 'E "expected BFloat16 but found Float"'),
        ("KeyError: 'lr'", "KeyError \"'lr'\""),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_words_to_search_for_stand_in_the_message(error, words):
    """Breaks when somebody is told to search for signs in place of numbers and names, which no page has."""
    results = searchable(error)
    assert results.startswith(words)
    assert all(stretch in error for stretch in re.findall('"([^"]+)"', results))


@given(st.text())
def test_words_to_search_for_are_the_messages_own_whatever_it_is(text):
    kind, *stretches = searchable(f"E: {text}").split(' "')
    assert kind.startswith("E") and all(stretch.removesuffix('"') in one_line(text) for stretch in stretches)


REDUCED = "AssertionError: The parameter 657 has already been reduced. Gradient computed twice for this partition. "
UNIFORM = "ValueError: FSDP expects {} parameter dtype but got {}"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (REDUCED + "Multiple gradient reduction is not supported", REDUCED + "This is not supported", True),
        ("RuntimeError: Output 0 of Split is a view", "RuntimeError: Output 12 of Split is a view", True),
        (UNIFORM.format("uniform original", "{bfloat16}"), UNIFORM.format("a uniform", "{float32}"), True),
        ("E: SumBackward0 returned an invalid gradient - got [0]", "E: a (0) must match b (8)", False),
        ("AssertionError: loss must be a scalar tensor", "RuntimeError: loss must be a scalar tensor", False),
        ("E: cannot import name 'A' from 'x'", "E: attempted relative import beyond top-level", False),
        ("a.B: the same words", "c.D: the same words", False),
    ],
)
def test_wordings_of_one_error_are_alike_and_those_of_others_are_not(one, other, same):
    """Breaks when a reworded message is taken for a changed behaviour, or a new failure hides behind the old one."""
    assert same_error(one, other) == same_error(other, one) == same
