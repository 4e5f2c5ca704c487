"""Error texts without what differs from run to run, so that one error is known again."""

import functools
import re
from difflib import SequenceMatcher

from faultline.base.text import one_line

ALIKE = 0.6  # of the words of two texts, in the same order, which makes them two wordings of one error

# In this order: a path may hold names and numbers, a name numbers. No replacement holds anything to replace.
_VARIABLE = (
    (re.compile(r"\b0x[0-9a-fA-F]+"), "#"),
    (re.compile(r"(?<![\w.~+/\\-])[\w.~+-]*(?:[/\\]+[\w.~+-]+)+[/\\]*"), "<path>"),
    (re.compile(r"(?<![\w<])[^\W\d]\w*(?:\.\w+)+"), "<name>"),
    (re.compile(r"[+-]?\d+(?:[._]\d+)*(?:[eE][+-]?\d+)?"), "#"),
    (re.compile(r"#(?:[\s,x]*#)+"), "#"),
)

# Of what looks variable, that which a library's source has as it stands.
_CONSTANT = r"\b\d-D\b|\btorch\.[A-Z]\w*\b|\b(?:BF|FP|bf|fp|BFloat|Float|Int)(?:8|16|32|64)\b"
SPLIT = re.compile("|".join([f"({_CONSTANT})", '"', *(pattern.pattern for pattern, _ in _VARIABLE[:4])]))
SEVERAL = re.compile(r"\w\W+\w")  # words: one alone finds everything
SIGNS = " ,:;([{)]}<>='`"  # that no stretch ends with
STRETCHES = 2  # of a message, that are searched for together


@functools.lru_cache(4096)  # the same error comes from many cells
def normalised(text: str) -> str:
    """A text in one line, with signs for its numbers, addresses, paths and dotted names; twice is the same as once."""
    before, line = "", one_line(text)
    while line != before:
        before = line
        for pattern, sign in _VARIABLE:
            line = pattern.sub(sign, line)
    return line


def searchable(text: str) -> str:
    """What finds an error elsewhere: its type, and its longest stretches of words that are in every such message."""
    kind, _, message = one_line(text).partition(": ")
    stretches, at = [], 0
    for match in SPLIT.finditer(message):
        if not match[1]:
            stretch = message[at : match.start()].rstrip(SIGNS)
            stretches.append(stretch.lstrip(SIGNS if at else " "))
            at = match.end()
    stretches.append(message[at:].strip().lstrip(SIGNS if at else " "))
    usable = [stretch for stretch in stretches if SEVERAL.search(stretch) or (stretch and not at)]
    longest = sorted(usable, key=len, reverse=True)[:STRETCHES]
    return " ".join([kind, *(f'"{stretch}"' for stretch in usable if stretch in longest)])


def same_error(one: str, other: str) -> bool:
    """Whether two texts, ``Type: message``, are wordings of one error: the same type and mostly the same words."""
    (kind, _, message), (other_kind, _, other_message) = (text.partition(": ") for text in (one, other))
    words, other_words = (normalised(text).split() for text in (message, other_message))
    return kind == other_kind and SequenceMatcher(None, words, other_words, autojunk=False).ratio() >= ALIKE
