"""Exit codes, and mistakes of the person at the terminal: one clear line and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

EXIT_AS_EXPECTED, EXIT_UNEXPECTED, EXIT_USAGE, EXIT_UNDECIDED, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

LONGEST = 400  # characters of names in a message
LISTS = {"failure": "list", "variant": "list --ids", "cell": "list --ids"}  # what tells names that are too many


class UsageError(Exception):
    """Something asked for can't be done; the message is one line and says what to do about it."""


class CheckFailed(Exception):
    """A check that somebody recommends found the problem; the error text names it as a program would."""

    def __str__(self) -> str:
        return f"CheckFailed: {self.args[0]}"


def unknown(kind: str, name: str, known: Sequence[str]) -> UsageError:
    """An error for a name that doesn't exist, with the nearest ones that do; where none is near, with all that there
    are, or with what lists them."""
    if near := difflib.get_close_matches(name, known, n=3, cutoff=0.4):
        return UsageError(f"unknown {kind} {name!r}; did you mean {' or '.join(near)}?")
    told = ", ".join(known) or "none that there is"
    if len(told) > LONGEST:
        listed = f" that `python -m faultline {LISTS[kind]}` has" if kind in LISTS else ""
        return UsageError(f"unknown {kind} {name!r}: none of the {len(known)}{listed}")
    return UsageError(f"unknown {kind} {name!r}: {'one of ' * (len(known) > 1)}{told}")
