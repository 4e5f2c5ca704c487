"""Searches where every look is costly: the boundary in a row of releases, the smallest set of changes that matters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Boundary:
    """Where a row of places changes, as far as looking can tell.

    `before` is the newest place known to be on the old side, `after` the
    oldest known to be on the new side; None where none was met. `skipped` are
    the places that showed nothing, in the order in which they were looked at.
    """

    count: int
    before: int | None
    after: int | None
    skipped: tuple[int, ...]

    @property
    def between(self) -> range:
        """The places that nothing is known of and that the answer hangs on; none if it is certain."""
        lower = -1 if self.before is None else self.before
        return range(lower + 1, self.count if self.after is None else self.after)

    @property
    def both(self) -> bool:
        """Whether both sides were met."""
        return self.before is not None and self.after is not None


def boundary(count: int, look: Callable[[int], bool | None]) -> Boundary:
    """Find the place from which on `look` is true; it may also be None, if nothing can be said.

    The newest place must be true, or there is nothing to search for. The
    oldest is looked at only if the search ends there: among n places that all
    tell something, at most 1 + ceil(log2(n)) looks.
    """
    answers: dict[int, bool | None] = {}

    def see(place: int) -> bool | None:
        answers[place] = look(place)
        return answers[place]

    newest = next((place for place in reversed(range(count)) if see(place) is not None), None)
    before, after = (newest, None) if newest is None or not answers[newest] else (None, newest)
    while after is not None:
        lower = -1 if before is None else before
        left = [place for place in range(lower + 1, after) if place not in answers]
        if not left:
            break
        place = nearest(left, (lower + after) // 2, sum(place in answers for place in range(lower + 1, after)))
        answer = see(place)
        if answer is not None:
            before, after = (before, place) if answer else (place, after)
    return Boundary(count, before, after, tuple(place for place, answer in answers.items() if answer is None))


def nearest(left: Sequence[int], middle: int, skips: int) -> int:
    """The next place to look at: the middle, then beside it, in strides that double after every second skip.

    What can't be installed comes in rows; the newer side is tried first.
    """
    stride = 2 ** ((skips + 1) // 2) - 1
    wanted = middle + (stride if skips % 2 else -stride)
    return min(left, key=lambda place: (abs(place - wanted), -place))


@dataclass(frozen=True)
class Smallest:
    """Changes that are enough. `minimal` if none of them can be left out."""

    items: tuple[str, ...]
    minimal: bool


def smallest(
    everything: Sequence[str], holds: Callable[[tuple[str, ...]], bool | None], first: Sequence[int] = ()
) -> Smallest:
    """The items that `holds` needs, of which all together are known to be enough, and none to be too few.

    The likeliest come first; `first` has the numbers of them to begin with.
    Each halving search finds the last item of the shortest beginning that is
    enough, so that k of n items take about k * log2(n) tries where more items
    never do less (Delta debugging would take several times as many). None
    from `holds`, if nothing can be said, counts as false, but then the
    result isn't called minimal.
    """
    tried: dict[tuple[str, ...], bool | None] = {(): False, tuple(everything): True}

    def check(*items: str) -> bool:
        key = tuple(item for item in everything if item in items)
        if key not in tried:
            tried[key] = holds(key)
        return bool(tried[key])

    needed: tuple[str, ...] = ()
    left = tuple(everything)  # which together with `needed` is always known to be enough
    while left and not check(*needed):
        low, high = 0, len(left)
        while high - low > 1:
            middle = next((size for size in first if low < size < high), (low + high) // 2)
            if check(*needed, *left[:middle]):
                high = middle
            else:
                low = middle
        needed, left, first = (*needed, left[high - 1]), left[: high - 1], ()
    return Smallest(tuple(item for item in everything if item in needed), None not in tried.values())
