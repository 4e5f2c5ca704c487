"""Texts that have an error's words without its type: a message alone, a title, a table, a sentence that quotes it."""

import re

from faultline.base.traces import is_victim
from faultline.catalogue.loading import failures
from faultline.diagnose.events import Event
from faultline.diagnose.lines import Line
from faultline.observations import store

MOST = 400  # lines of such a text; what is longer is a log, which has the types


class Alone:
    """Takes the lines of a text until it is too long, and remembers the first that has the words of an error."""

    def __init__(self) -> None:
        self._count = 0
        self._first: Line | None = None

    @property
    def open(self) -> bool:
        """Whether the text may still be one, so that every line counts."""
        return self._count <= MOST and not self._first

    def take(self, line: Line) -> None:
        if self.open:
            self._count += 1
            if typed(line.text) is not None and not is_victim(line.text):
                self._first = line

    def event(self) -> Event | None:
        """The error whose words a text has, if the catalogue has one; without a type if no run ended with it."""
        if not (line := self._first):
            return None
        kind = typed(line.text) or ""
        return Event("line", kind, line.text.strip(), line.file, line.number, line.number, line.rank)


def typed(message: str) -> str | None:
    """The type of the error of a failure whose words a message has, as it was recorded; None if it has none."""
    return next((kind for pattern, kind in _kinds() if pattern.search(message)), None)


@store.view
def _kinds() -> list[tuple[re.Pattern[str], str]]:
    """The patterns of the errors that failures have of themselves, each with the type of a recorded one."""
    types = {(error.failure, error.signature): error.text.partition(":")[0] for error in store.errors().values()}
    return [
        (re.compile(pattern, re.IGNORECASE), types.get((failure.name, signature), ""))
        for failure in failures().values()
        for signature, pattern in failure.errors.items()
        if signature not in failure.also_raises
    ]
