"""A text of a line or two that may be an error's message alone, without its type."""

import re

from faultline.catalogue.loading import failures
from faultline.diagnose.events import Event
from faultline.diagnose.lines import Line
from faultline.observations import store

MOST = 3  # lines of such a text; a log is longer


class Alone:
    """Takes the first lines of a log, which are all of it if it is a message alone."""

    def __init__(self) -> None:
        self._lines: list[Line] = []

    @property
    def open(self) -> bool:
        """Whether the text may still be one, so that every line counts."""
        return len(self._lines) <= MOST

    def take(self, line: Line) -> None:
        if self.open and line.text.strip():
            self._lines.append(line)

    def event(self) -> Event | None:
        """The error whose words a short text has, if the catalogue has one."""
        for line in self._lines if self.open else ():
            if kind := typed(line.text):
                return Event(
                    "line", kind, line.text.strip(), line.file, line.number, line.number, line.rank, line.stream
                )
        return None


def typed(message: str) -> str:
    """The type of the recorded error of a failure whose words a message has; empty if there is none."""
    for error in store.errors().values():
        failure = failures().get(error.failure)
        pattern = failure.errors.get(error.signature) if failure else None
        if pattern and error.outcome == "raises" and re.search(pattern, message):
            return error.text.partition(":")[0]
    return ""
