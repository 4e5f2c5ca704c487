"""A remedy's name that notes whether the code which is given it does anything else for it than for `broken`."""

from typing import Any

BROKEN = "broken"


class Remedy(str):
    """The name of a remedy, as a failure's code has it; `read` once that code has asked it anything whose answer isn't
    that of `broken`. What can't be compared, such as a look into a table or a part of the name, counts as read."""

    read = False

    @property
    def is_broken(self) -> bool:
        return str.__eq__(self, BROKEN) is True

    def _noted(self, answer: Any, of_broken: Any = None) -> Any:
        self.read |= answer is not of_broken
        return answer

    def __eq__(self, other: object) -> bool:
        return bool(self._noted(str.__eq__(self, other) is True, other == BROKEN))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(self._noted(str.__hash__(self)))

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        return bool(self._noted(str.__contains__(self, part), part in BROKEN))

    def __getattribute__(self, name: str) -> Any:
        member = super().__getattribute__(name)
        if name in ("startswith", "endswith"):
            return lambda *words: self._noted(member(*words), getattr(BROKEN, name)(*words))
        return member if name.startswith(("_", "is_broken", "read")) else self._noted(member)
