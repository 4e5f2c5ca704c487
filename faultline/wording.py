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

# Of what looks variable, that which a library's source has as it stands.
_CONSTANT = r"\b\d-D\b|\btorch\.[A-Z]\w*\b"
_SPLIT = re.compile("|".join([f"({_CONSTANT})", '"', *(pattern.pattern for pattern, _ in _VARIABLE[:4])]))
_SEVERAL = re.compile(r"\w\W+\w")  # words: one alone finds everything
STRETCHES = 2  # of a message, that are searched for together


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


def searchable(text: str) -> str:
    """What finds an error elsewhere: its type, and its longest stretches of words that are in every such message."""
    kind, _, said = one_line(text).partition(": ")
    signs, stretches, at = " ,:;([{)]}<>='`", [], 0
    for match in _SPLIT.finditer(said):
        if not match[1]:
            stretch = said[at : match.start()].rstrip(signs)
            stretches.append(stretch.lstrip(signs if at else " "))
            at = match.end()
    stretches.append(said[at:].strip().lstrip(signs if at else " "))
    told = [stretch for stretch in stretches if _SEVERAL.search(stretch) or (stretch and not at)]
    longest = sorted(told, key=len, reverse=True)[:STRETCHES]
    return " ".join([kind, *(f'"{stretch}"' for stretch in told if stretch in longest)])


def same_error(one: str, other: str) -> bool:
    """Whether two texts, ``Type: message``, are wordings of one error: the same type and mostly the same words."""
    (kind, _, said), (kind_too, _, said_too) = (text.partition(": ") for text in (one, other))
    words, words_too = (normalised(text).split() for text in (said, said_too))
    return kind == kind_too and SequenceMatcher(None, words, words_too, autojunk=False).ratio() >= ALIKE
