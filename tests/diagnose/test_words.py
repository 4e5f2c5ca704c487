"""Words that whole logs are searched for: no line with a pattern lacks them all."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.diagnose import context, signs
from faultline.diagnose.words import needed

PATTERNS = sorted({*context.patterns(), signs.WHAT.pattern, signs.FRAME.pattern})


@pytest.mark.parametrize("pattern", PATTERNS)
def test_law_what_a_pattern_matches_has_one_of_its_words(pattern):
    """Breaks when a line that shows the failure is passed over, since no word of it is searched for."""

    @settings(max_examples=25)
    @given(st.from_regex(pattern))
    def law(text):
        assert re.search(needed([pattern]), text)

    law()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"checkpoint(?:ing)?\.py\b", "checkpoint"),
        (r"\bprepare(?:_(?:model|data))?\([\w.]*[rR]ef", "prepare"),
        (r"(?:GKD|GOLD)(?:Config|Trainer)", "GKD|GOLD"),
        (r"[pP]eft|(?<!self)\.module\(", r"Peft|module\(|peft"),
        (r"un_?freez", "un_?freez"),
        (r"\(deep\|speed\)", r"deep\|speed\)"),
        (r"z\d{100}|step", r"z\d{100}|step"),
    ],
)
def test_the_longest_text_of_each_alternative_is_searched_for(pattern, words):
    """Breaks when a healthy log is searched for what is common in it, or for what needn't be there."""
    assert needed([pattern]) == words
