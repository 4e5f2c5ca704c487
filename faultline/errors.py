"""Exit codes, and mistakes of the person at the terminal: one clear line and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

EXIT_AS_EXPECTED, EXIT_UNEXPECTED, EXIT_USAGE, EXIT_UNDECIDED, EXIT_INTERRUPTED = 0, 1, 2, 3, 130

LONGEST = 400  # characters of names in a message
FIRST = 10  # names, where there are more than that and nothing lists them
LISTS = {"failure": "`python -m faultline list`"} | dict.fromkeys(
    ("variant", "cell"), "`python -m faultline list --ids`"
)


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
    told = ", ".join(known)
    if len(told) <= LONGEST:
        return UsageError(f"unknown {kind} {name!r}: {f'one of {told}' if told else 'there is none'}")
    if kind in LISTS:
        return UsageError(f"unknown {kind} {name!r}: none of the {len(known)} that {LISTS[kind]} has")
    return UsageError(f"unknown {kind} {name!r}: one of {', '.join(known[:FIRST])} and {len(known) - FIRST} more")
