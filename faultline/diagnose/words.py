"""What recognise.toml files look for, as patterns for the lines of a log: a new failure adds its own."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from faultline.catalogue.loading import failures

SHORTEST = 3  # letters of a text that is rare enough to search whole logs for


@functools.cache
def patterns() -> tuple[str, ...]:
    """Every pattern that is present or absent in a line. What spans lines is about an error's own traceback."""
    tables = [table for f in failures().values() for table in (f.recognition.error, f.recognition.mechanism)]
    conditions = [condition for table in tables for each in table.values() for condition in each.any_of]
    every = {pattern for condition in conditions for pattern in (*condition.present, *condition.absent)}
    return tuple(sorted(pattern for pattern in every if r"\n" not in pattern))


@functools.cache
def texts() -> tuple[str, ...]:
    """Texts of which every line with one of the patterns has one: they are fast to search for."""
    return tuple(sorted({text for pattern in patterns() for text in _needed(parser.parse(pattern), pattern)}))


def _needed(sequence: Any, whole: str) -> Iterator[str]:
    """The longest text that a part of a pattern can't do without, in all its spellings, or that of each branch."""
    runs: list[list[str]] = [[""]]
    branches = []
    for code, value in sequence:
        if spellings := _spellings(code, value):
            runs[-1] = [text + spelling for text in runs[-1] for spelling in spellings]
            continue
        runs.append([""])
        inner = value[-1] if code is op.SUBPATTERN else None
        if inner is not None and len(inner) == 1 and inner[0][0] is op.BRANCH:
            branches.append(inner[0][1][1])
        elif code is op.BRANCH:
            branches.append(value[1])
    longest = max(runs, key=_letters)
    if _letters(longest) >= SHORTEST:
        yield from (re.escape(text.lstrip(",._ '")) for text in longest)  # letters first: that is what is fast
    elif branches:
        for branch in branches[0]:
            yield from _needed(branch, whole)
    else:
        yield whole


def _spellings(code: Any, value: Any) -> list[str]:
    """The texts of a letter, of a choice of two, or of a letter that may be missing; none of anything else."""
    if code is op.LITERAL:
        return [chr(value)]
    if code is op.IN and len(value) == 2 and all(kind is op.LITERAL for kind, _ in value):
        return [chr(letter) for _, letter in value]
    if code is op.MAX_REPEAT and value[:2] == (0, 1) and len(value[2]) == 1:
        return ["", *_spellings(*value[2][0])]
    return []


def _letters(texts: list[str]) -> int:
    return min(sum(map(str.isalnum, text)) for text in texts)
