"""Bisecting where every look is costly: releases, and mixtures of stacks, until it is known where cells change."""

import datetime
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from faultline.base.errors import UsageError
from faultline.base.packages import NEEDED
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.runs import campaigns, results
from faultline.runs.campaigns import Campaign, Measured
from faultline.runs.results import Result
from faultline.stacks import requests
from faultline.stacks.environments import pins
from faultline.stacks.index import Release
from faultline.stacks.requests import Stack


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
    def complete(self) -> bool:
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


AGREE, MOST = 3, 5  # runs of either side: so many if they agree, at most so many if they don't
TRIALS = 8  # environments that the search among changed packages may make


@dataclass(frozen=True)
class Question:
    """What is searched for: the first release on whose stack cells begin (`introduced`) or cease to fail (`fixed`)."""

    failure: Failure
    cells: Sequence[Cell]
    package: str
    introduced: bool
    dated: bool
    bad: Sequence[str]

    def shows(self, measured: Measured) -> bool | None:
        """Whether the failure shows on a stack: in any cell. None where it doesn't, but not all of them train."""
        if any(self.is_bad(entry) for entry in measured.results):
            return True
        train = [entry.outcome == Outcome.TRAINS for entry in measured.results]
        return False if train and all(train) else None

    def is_bad(self, entry: Result) -> bool:
        if self.bad:
            return not {entry.outcome, f"{entry.outcome}:{entry.signature}"}.isdisjoint(self.bad)
        return results.shows(self.failure, entry)

    def stack(self, release: Release) -> Stack:
        """The stack that a release is looked at in."""
        pin = f"{self.package}=={release.version}"
        if not self.dated:
            return requests.parse(pin)
        if not release.date:
            raise UsageError(f"the package index doesn't say when {pin} was released: use --others fixed")
        # The day after: what it needs may have been released with it, and index and resolver may differ on the hour.
        day = datetime.date.fromisoformat(release.date) + datetime.timedelta(days=1)
        asof = max(day, requests.EARLIEST).isoformat()
        return Stack(f"{pin} as of {asof}", (pin, *(name for name in NEEDED if name != self.package)), asof)


@dataclass
class Bisection:
    """A question being answered: each time that a release, or a mixture of two stacks, was measured."""

    campaign: Campaign
    question: Question
    releases: Sequence[Release]
    runs: dict[int, list[Measured]] = field(default_factory=dict)
    trials: list[tuple[tuple[str, ...], Measured]] = field(default_factory=list)

    def look(self, place: int) -> bool | None:
        """Whether a release is on the new side of the change, by most of its runs; None if it is on neither."""
        if place not in self.runs:
            self.run(place)
        return self.verdict(place)

    def verdict(self, place: int) -> bool | None:
        (most, votes), *others = Counter(self.sides(place)).most_common()
        return None if others and others[0][1] == votes else most

    def sides(self, place: int) -> list[bool | None]:
        """What each run of a release says: on the new side of the change, the old one, or neither."""
        return [self.side(each) for each in self.runs[place]]

    def side(self, measured: Measured) -> bool | None:
        shows = self.question.shows(measured)
        return shows if shows is None or self.question.introduced else not shows

    def run(self, place: int) -> None:
        """Measure a release, each time on exactly the versions of its first time."""
        release, times = self.releases[place], self.runs.setdefault(place, [])
        name = f"{self.question.package}-{release.version}"
        if not times:
            campaigns.note(f"{len(self.runs)}. of {len(self.releases)} releases: {self.question.package} {release}")
        else:
            name += "-again" if len(times) == 1 else f"-again-{len(times)}"
            campaigns.part(self.campaign, name).describe(lock=times[0].lock)
        stack, cells = self.question.stack(release), self.question.cells
        times.append(campaigns.measure(self.campaign, name, stack, cells, again=len(times)))

    def settled(self, place: int) -> bool:
        """Whether a release has run often enough; one without an environment, or without a cell, says no more."""
        sides = self.sides(place)
        if self.runs[place][0].unusable or len(sides) == MOST:
            return True
        return len(sides) >= AGREE and len(set(sides)) == 1

    def wavers(self, place: int) -> bool:
        """Whether a release that can't tell might in another run."""
        unproven = any("invalid" in did for each in self.runs[place] for did in each.outcomes.values())
        return unproven or len(set(self.sides(place))) > 1

    def uncertain(self, edge: Boundary) -> list[int]:
        """The places on which the answer hangs and that should run again."""
        ends = [place for place in (edge.before, edge.after) if place is not None]
        doubtful = [place for place in edge.between if self.wavers(place)]
        return [place for place in ends + doubtful if not self.settled(place)]

    def search(self) -> Boundary:
        """The boundary, both sides of it run again; where that overrules a first run, the search goes on from there."""
        while True:
            edge = boundary(len(self.releases), self.look)
            again = self.uncertain(edge)
            if not again:
                return edge
            for place in again:
                self.run(place)

    def blame(self, edge: Boundary) -> Smallest:
        """The smallest set of packages whose change, the rest as before, is enough for the cells to change."""
        assert edge.before is not None and edge.after is not None
        old, new = (locked(self.runs[place][0].lock) for place in (edge.before, edge.after))
        changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
        changed.sort(key=lambda name: (name != self.question.package, name not in NEEDED))  # the likeliest first

        def holds(names: tuple[str, ...]) -> bool | None:
            if len(self.trials) == TRIALS:
                return None
            mixed = {name: (new if name in names else old).get(name, "") for name in {**old, **new}}
            number = len(self.trials) + 1
            campaigns.note(f"trial {number}: {', '.join(names)} as in the newer stack, the rest as in the older one")
            stack = Stack(f"trial {number}", tuple(filter(None, mixed.values())), base=tuple(new.values()))
            self.trials.append((names, campaigns.measure(self.campaign, f"trial-{number}", stack, self.question.cells)))
            return self.side(self.trials[-1][1])

        return smallest(changed, holds, (1, sum(name in NEEDED for name in changed)))

    @property
    def environments(self) -> int:
        measured = [each for times in self.runs.values() for each in times] + [each for _, each in self.trials]
        return len({each.lock for each in measured if each.lock})


def locked(lock: str) -> dict[str, str]:
    """The line of each package in a lock."""
    return dict(zip(pins(lock), filter(None, lock.splitlines()), strict=True))
