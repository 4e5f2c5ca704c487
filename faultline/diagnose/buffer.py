"""The events of a log while it is read: bounded, and the one that can least be the first cause makes room."""

from __future__ import annotations

from dataclasses import replace

from faultline.diagnose.events import Event

Writer = tuple[str, str]
"""A file, and the name of who wrote a line of it; empty where no prefix names one."""

Key = tuple[Writer, str]
"""A writer and the text of its error, or the signal that ended it: what makes two events one."""


class EventBuffer:
    """The events of a log, for a while up to twice as many as `most`; `more` were left out."""

    def __init__(self, most: int) -> None:
        self.events: dict[Key, Event] = {}
        self.live: dict[Writer, list[Key]] = {}  # the errors of each writer that were not survived yet
        self.more = 0
        self._most = most

    def add(self, key: Key, event: Event) -> None:
        """Add an event; the same error of the same writer is one, unless it trained on in between."""
        if key in self.events and not self.events[key].survived:
            return
        self.events.pop(key, None)  # so that the new one is the last
        self.events[key] = event
        if not event.follows:
            self.live.setdefault(key[0], []).append(key)
        if len(self.events) >= 2 * self._most:
            self.make_room()

    def survive(self, writer: Writer) -> None:
        """Mark the errors of a writer that reported a loss: they did not end its run."""
        for key in self.live.pop(writer):
            if key in self.events:
                self.events[key] = replace(self.events[key], survived=True)

    def make_room(self) -> None:
        """Leave `most` events: the ones that can least be the first cause go, of survived ones the oldest first."""
        age = {key: number for number, key in enumerate(self.events)}

        def order(key: Key) -> tuple[bool, bool, bool, int]:
            event = self.events[key]
            return not event.survived, not event.follows, event.kind != "line", age[key] * (1 if event.survived else -1)

        for key in sorted(self.events, key=order)[: max(0, len(self.events) - self._most)]:
            del self.events[key]
            self.more += 1
