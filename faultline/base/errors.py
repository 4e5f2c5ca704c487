"""Exit codes, and all that this suite raises by intent: a `FaultlineError` of some kind."""

from collections.abc import Mapping, Sequence

from faultline.base.text import NO_ALIASES, similar_names

EXIT_AS_EXPECTED, EXIT_UNEXPECTED, EXIT_USAGE, EXIT_UNDECIDED = 0, 1, 2, 3
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143

OTHER = "error"  # the kind of any other exception in a rank
DIED = "died"  # the kind of what ended without one
MACHINE = "machine"  # the kind of what this machine lacks

LONGEST = 400  # characters of names in a message
FIRST = 10  # names, where all would be more than that


UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
"""The errors of reading somebody's text: it is no such text, has something else in it, or is nested too deeply."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command in order, as Ctrl-C does."""


def terminate(*_: object) -> None:
    """Handle SIGTERM."""
    raise Terminated


class FaultlineError(Exception):
    """An error that this suite raises by intent, and so no fault of its own; raised in a rank, its report has the
    `kind`."""

    kind = OTHER


class UsageError(FaultlineError):
    """Something asked for can't be done: exit code 2; the message is one line and says what to do about it."""


class NotInstalled(UsageError):
    """Libraries under test that are not here: `lacking` has their names, and `ways` what else can be done."""

    def __init__(self, lacking: str, *ways: str) -> None:
        super().__init__(f"not installed here: {lacking}; {', or '.join(('install that beside Faultline', *ways))}")
        self.lacking = lacking


class NotRecognised(UsageError):
    """A file that says nothing of a training, as far as it can be read."""


class NotExportable(UsageError):
    """A cell that can't be made into one file; the message says why."""

    def __init__(self, why: str, cell: str = "this cell") -> None:
        super().__init__(f"{cell} can't be exported: {why}")


class NotConstant(FaultlineError):
    """Source code has no value before it runs; the message says what in it has none."""


class CheckFailed(FaultlineError):
    """A check that somebody recommends found the problem."""

    kind = "check"


class TargetFailed(FaultlineError):
    """A model can't be trained in one process; has the traceback of its own code, if it came so far."""

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


class Unavailable(FaultlineError):
    """Something that a command needs can't be had here, as `what` says; the message is one line and says why."""

    what = ""


class Uninstallable(Unavailable):
    """A stack that can't be resolved or installed; the message says why in a line."""

    what = "uninstallable: "


class NoBrowser(Unavailable):
    """There is no browser here; one that is there and doesn't start is another error."""


class ServerDied(FaultlineError):
    """The rank server itself ended, which says nothing of the cell that it was running."""


class NeverReady(ServerDied, Unavailable):
    """The rank server could not even start: what its stack can't import, no cell will."""

    what = "this stack can't run the suite: "


class NoRoom(Unavailable):
    """A cluster has no node, or no free one, for cells; which says nothing of their stack."""


LACKS = "this stack lacks it: "
"""How the message of an `Impossible` begins whose cause is a failed import."""


class Impossible(FaultlineError):
    """The cell can't exist here; the message says why."""

    kind = "impossible"


class Refused(FaultlineError):
    """A model that can't be checked; the message says why, and what to do about it."""

    kind = "refused"


class NotTaken(FaultlineError):
    """A model has no part for what it is given."""


class NotAsExpected(FaultlineError):
    """A cell did something else than its failure's expected.toml says; has its result."""


def unknown(kind: str, name: str, known: Sequence[str], aliases: Mapping[str, str] = NO_ALIASES) -> UsageError:
    """An error for a name that doesn't exist, with the nearest ones that do; where none is near, with all that there
    are, or the first of very many."""
    if meant := similar_names(name, known, aliases):
        return UsageError(f"unknown {kind} {name!r}; did you mean {' or '.join(meant)}?")
    names = ", ".join(known)
    if len(names) > LONGEST:
        names = f"{', '.join(known[:FIRST])} and {len(known) - FIRST} more"
    return UsageError(f"unknown {kind} {name!r}: {f'one of {names}' if names else 'there is none'}")
