"""Numbers and links in few characters."""

from __future__ import annotations

import math

import pytest

from faultline.base import text


@pytest.mark.parametrize(
    ("share", "words"),
    [(2.1, "210 %"), (0.5, "50 %"), (1.06e-5, "0.0011 %"), (1234.0, "120000 %"), (math.inf, "inf"), ("nan", "nan")],
)
def test_a_share_is_told_in_percent(share, words):
    """Breaks when an error reads as a power of ten, or as a percentage of what is no number."""
    assert text.percent(share) == words


def test_a_link_is_told_by_its_repository():
    assert text.short_link("https://github.com/huggingface/trl/issues/2719#x") == "trl#2719"
    assert text.short_link("https://example.org/a/b") == "example.org"
