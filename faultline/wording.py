"""Error texts without what differs from run to run, so that one error is known again."""

from __future__ import annotations

import functools
import re
from difflib import SequenceMatcher

from faultline.report import one_line

ALIKE = 0.6  # of the words of two texts, in the same order, which makes them two wordings of one error

# In this order: a path may hold names and numbers, a name numbers. No replacement holds anything to replace.
_VARIABLE = (
    (re.compile(r"\b0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"(?<![\w.~+-])[\w.~+-]*(?:[/\\]+[\w.~+-]+)+[/\\]*"), "<path>"),
    (re.compile(r"(?<![\w<])[^\W\d]\w*(?:\.\w+)+"), "<name>"),
    (re.compile(r"[+-]?\d+(?:[._]\d+)*(?:[eE][+-]?\d+)?"), "#"),
    (re.compile(r"#(?:[\s,x]*#)+"), "#"),
)


@functools.lru_cache(4096)  # the same error comes from many cells
def normalised(text: str) -> str:
    """A text in one line, with signs for its numbers, addresses, paths and dotted names; twice is the same as once."""
    found = one_line(text)
    while True:
        before = found
        for pattern, sign in _VARIABLE:
            found = pattern.sub(sign, found)
        if found == before:
            break
    return found


def same_error(one: str, other: str) -> bool:
    """Whether two texts, ``Type: message``, are wordings of one error: the same type and mostly the same words."""
    (kind, _, said), (kind_too, _, said_too) = (text.partition(": ") for text in (one, other))
    words, words_too = (normalised(text).split() for text in (said, said_too))
    return kind == kind_too and SequenceMatcher(None, words, words_too, autojunk=False).ratio() >= ALIKE
