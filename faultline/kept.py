"""Events of a log while it is read: bounded, and what can least be the first cause makes room."""

from __future__ import annotations

from dataclasses import replace

from faultline.events import Event

Writer = tuple[str, str]
"""A file, and the name of who wrote a line of it; empty where no prefix tells."""

Key = tuple[Writer, str]
"""A writer and its words, or the signal that ended it: what makes two events one."""


class Kept:
    """At most so many events; `more` were left out.

    Where there are too many, what was survived makes room, the oldest first, then what only follows, then errors
    without a traceback.
    """

    def __init__(self, most: int) -> None:
        self.events: dict[Key, Event] = {}
        self.live: dict[Writer, list[Key]] = {}  # the errors of each writer that were not survived yet
        self.more = 0
        self._most = most
        self._survived: dict[Key, None] = {}  # the oldest first
        # All keys by how well they can be the cause: what only follows, errors without a traceback, the rest.
        self._weighed: tuple[dict[Key, None], ...] = ({}, {}, {})

    def add(self, key: Key, event: Event) -> None:
        """Keep an event; the same words of the same writer are one, unless it trained on in between."""
        if key in self.events and not self.events[key].survived:
            return
        self._forget(key)
        self.events[key] = event
        self._weighed[0 if event.follows else 1 if event.kind == "line" else 2][key] = None
        if not event.follows:
            self.live.setdefault(key[0], []).append(key)
        if len(self.events) > self._most:
            self.more += 1
            least = next(filter(None, self._weighed))
            self._forget(next(iter(self._survived), None) or next(reversed(least)))

    def survive(self, writer: Writer) -> None:
        """A writer reported a loss: what it told before didn't end its run."""
        for key in self.live.pop(writer):
            if key in self.events:
                self.events[key] = replace(self.events[key], survived=True)
                self._survived[key] = None

    def _forget(self, key: Key) -> None:
        self.events.pop(key, None)
        self._survived.pop(key, None)
        for keys in self._weighed:
            keys.pop(key, None)
