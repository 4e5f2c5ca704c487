"""Texts that have an error's words without its type: a message alone, a title, a table, a sentence that quotes it."""

import re
from collections import deque

from faultline.base.traces import is_victim
from faultline.catalogue.loading import failures
from faultline.diagnose.events import Event
from faultline.diagnose.lines import Line
from faultline.diagnose.signs import needed
from faultline.observations import ambiguity, store

MOST = 400  # lines of such a text; what is longer is a log, which has the types
LONGEST = 4_000  # characters of a line: what somebody pastes of a message is shorter
OUT_OF_MEMORY = {r"\bCUDA out of memory\b": "torch.OutOfMemoryError"}  # which is no failure, and pasted a lot
WRAPPED = 3  # lines into which a terminal or a mail may have broken the words


class MessageReader:
    """Takes the lines of a text until it is too long, and remembers the first that has the words of an error."""

    def __init__(self) -> None:
        self._count = 0
        self._first: Line | None = None
        self._text = ""
        self._last: deque[str] = deque(maxlen=WRAPPED)

    @property
    def open(self) -> bool:
        """Whether the text may still be one, so that every line counts."""
        return self._count <= MOST and not self._first

    def take(self, line: Line) -> None:
        if not self.open:
            return
        self._count += 1
        self._last.append(line.text[:LONGEST].strip())
        for text in (line.text[:LONGEST], " ".join(self._last)):
            if typed(text) is not None and not is_victim(text):
                self._first, self._text = line, text.strip()
                return

    def event(self) -> Event | None:
        """The error whose words a text has, if the catalogue has one; without a type if no run ended with it."""
        if not (line := self._first):
            return None
        return Event("line", typed(self._text) or "", self._text, line.file, line.number, line.number, line.rank)


def typed(message: str) -> str | None:
    """The type of the error of a failure whose words a message has, as it was recorded; None if it has none."""
    if not _words().search(message.lower()):  # which is much faster than any search that knows both cases
        return None
    return next((kind for pattern, kind in _kinds() if pattern.search(message)), None)


@store.view
def _words() -> re.Pattern[str]:
    """The pattern of words: a message with an error's text has one of them in lower case."""
    words = needed(pattern.pattern for pattern, _ in _kinds())
    return re.compile(re.sub(r"(?<!\\)[A-Z]", lambda letter: letter[0].lower(), words))


@store.view
def _kinds() -> list[tuple[re.Pattern[str], str]]:
    """The patterns of the errors that failures have of themselves, each with the type of a recorded one; then how the
    messages begin that a failure may be one of several for."""
    types = {(error.failure, error.signature): ambiguity.kind(error) for error in store.errors().values()}
    patterns = [
        (re.compile(pattern, re.IGNORECASE), types.get((failure.name, signature), ""))
        for failure in failures().values()
        for signature, pattern in failure.errors.items()
        if signature not in failure.also_raises
    ]
    return patterns + [(re.compile(pattern, re.IGNORECASE), kind) for pattern, kind in beginnings().items()]


def beginnings() -> dict[str, str]:
    """How the messages begin that a failure may be one of several for, as patterns, with the types of their errors;
    then the types that say enough without a message."""
    shared = [
        error
        for error in store.errors().values()
        if (failure := failures().get(error.failure)) and failure.recognition.of(error.signature).distinguished_by
    ]
    begins = {re.escape(text): ambiguity.kind(error) for error in shared if (text := ambiguity.beginning(error))}
    names = {pattern: ambiguity.kind(error) for error in shared if (pattern := ambiguity.type_alone(error))}
    return begins | names | OUT_OF_MEMORY
