"""Bisect: between which two releases of a package cells change what they do, and which other package did it."""

from __future__ import annotations

import argparse
import datetime
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.version import InvalidVersion, Version

from faultline import campaigns, commands, environments, index, reproduce, results, search, stacks
from faultline.campaigns import Campaign, Measured
from faultline.catalogue import Failure, failures
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, UsageError, unknown
from faultline.index import Release
from faultline.matrix import Cell, default_world, listed
from faultline.oracle import Outcome
from faultline.report import bisect as report
from faultline.results import Result
from faultline.search import Boundary, Smallest
from faultline.stacks import NEEDED, Stack

SEVERAL = 6  # cells that one question may be about
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
        train = [entry["outcome"] == Outcome.TRAINS for entry in measured.results]
        return False if train and all(train) else None

    def is_bad(self, entry: Result) -> bool:
        if self.bad:
            return not {entry["outcome"], f"{entry['outcome']}:{entry['signature']}"}.isdisjoint(self.bad)
        return reproduce.shows(self.failure, entry)

    def stack(self, release: Release) -> Stack:
        """The stack that a release is looked at in."""
        pin = f"{self.package}=={release.version}"
        if not self.dated:
            return stacks.parse(pin)
        if not release.date:
            raise UsageError(f"the package index doesn't say when {pin} was released: use --others fixed")
        # The day after: what it needs may have been released with it, and index and resolver may differ on the hour.
        day = datetime.date.fromisoformat(release.date) + datetime.timedelta(days=1)
        asof = max(day, stacks.EARLIEST).isoformat()
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
            campaigns.say(f"{len(self.runs)}. of {len(self.releases)} releases: {self.question.package} {release}")
        else:
            name += "-again" if len(times) == 1 else f"-again-{len(times)}"
            campaigns.part(self.campaign, name).describe(lock=times[0].lock)
        times.append(campaigns.measure(self.campaign, name, self.question.stack(release), self.question.cells))

    def settled(self, place: int) -> bool:
        """Whether a release has run often enough; one without an environment, or without a cell, says no more."""
        sides = self.sides(place)
        if self.runs[place][0].unusable or len(sides) == MOST:
            return True
        return len(sides) >= AGREE and len(set(sides)) == 1

    def wavers(self, place: int) -> bool:
        """Whether a release that can't tell might in another run."""
        unproven = any("invalid" in told for each in self.runs[place] for told in each.outcomes.values())
        return unproven or len(set(self.sides(place))) > 1

    def uncertain(self, found: Boundary) -> list[int]:
        """The places on which the answer hangs and that should run again."""
        ends = [place for place in (found.before, found.after) if place is not None]
        doubtful = [place for place in found.between if self.wavers(place)]
        return [place for place in ends + doubtful if not self.settled(place)]

    def search(self) -> Boundary:
        """The boundary, both sides of it run again; where that overrules a first run, the search goes on from there."""
        while True:
            found = search.boundary(len(self.releases), self.look)
            again = self.uncertain(found)
            if not again:
                return found
            for place in again:
                self.run(place)

    def blame(self, found: Boundary) -> Smallest:
        """The smallest set of packages whose change, the rest as before, is enough for the cells to change."""
        assert found.before is not None and found.after is not None
        old, new = (locked(self.runs[place][0].lock) for place in (found.before, found.after))
        changed = sorted(name for name in {**old, **new} if old.get(name) != new.get(name))
        changed.sort(key=lambda name: (name != self.question.package, name not in NEEDED))  # the likeliest first

        def holds(names: tuple[str, ...]) -> bool | None:
            mixed = {name: (new if name in names else old).get(name, "") for name in {**old, **new}}
            number = len(self.trials) + 1
            campaigns.say(f"trial {number}: {', '.join(names)} as in the newer stack, the rest as in the older one")
            stack = Stack(f"trial {number}", tuple(filter(None, mixed.values())), base=tuple(new.values()))
            self.trials.append((names, campaigns.measure(self.campaign, f"trial-{number}", stack, self.question.cells)))
            return self.side(self.trials[-1][1])

        return search.smallest(changed, holds, (1, sum(name in NEEDED for name in changed)), TRIALS)

    @property
    def environments(self) -> int:
        measured = [each for times in self.runs.values() for each in times] + [each for _, each in self.trials]
        return len({each.lock for each in measured if each.lock})


def locked(lock: str) -> dict[str, str]:
    """The line of each package in a lock."""
    return dict(zip(environments.pins(lock), filter(None, lock.splitlines()), strict=True))


def command(args: argparse.Namespace) -> int:
    """Bisect as the options ask, say what was found, and write bisect.json; the exit code says how it went."""
    package = stacks.requirement(args.package)
    known = {*NEEDED, *environments.pins("\n".join(stacks.installed()))}
    if package not in known:
        raise unknown("package", args.package, sorted(known))
    cells = chosen(args)
    failure = failures()[cells[0].failure]
    question = Question(failure, cells, package, args.introduced, args.others == "dated", bad(args.bad))
    request = {
        "package": package,
        "cells": [cell.id for cell in cells],
        "bad": question.bad,
        **{name: getattr(args, name) for name in ("introduced", "fixed", "others", "oldest", "newest")},
    }
    campaign, releases = begun(args, package, request)
    bisection = Bisection(campaign, question, releases)
    found = bisection.search()
    if not (args.introduced or args.fixed) and found.after is None and found.before is not None:
        bisection.question = replace(question, introduced=True)  # nobody said which way, and the newest shows it
        found = bisection.search()
    culprits = bisection.blame(found) if args.blame and found.found else None
    told = report.record(bisection, found, culprits)
    (campaign.folder.path / "bisect.json").write_text(json.dumps(results.finite(told), indent=2) + "\n")
    campaign.folder.describe(finished=True)
    for line in report.lines(told):
        print(line)
    print(f"results: {campaign.folder.shown}/bisect.json")
    return EXIT_UNDECIDED if found.between else EXIT_AS_EXPECTED if found.found else EXIT_UNEXPECTED


def begun(args: argparse.Namespace, package: str, request: Mapping[str, Any]) -> tuple[Campaign, list[Release]]:
    """The campaign and its releases, which stay what they were when it began."""
    if args.resume:
        campaign = campaigns.begin("bisect", request, args.workers, resume=True)
        kept = campaign.folder.facts().get("releases")
        if kept:
            return campaign, [Release(**each) for each in kept]
    releases = within(package, index.releases(package), args.oldest, args.newest)
    if not args.resume:
        campaign = campaigns.begin("bisect", request, args.workers)
    campaign.folder.describe(releases=[vars(release) for release in releases])
    return campaign, releases


def within(package: str, releases: Sequence[Release], oldest: str, newest: str) -> list[Release]:
    """The releases from one to another; from what was newest on the day of the earliest stack, to today's."""
    days = [place for place, release in enumerate(releases) if "" < release.date <= stacks.EARLIEST.isoformat()]
    first = place_of(package, releases, oldest) if oldest else max(days, default=0)
    last = place_of(package, releases, newest) if newest else len(releases) - 1
    if first > last:
        raise UsageError(f"--from {releases[first].version} is later than --to {releases[last].version}")
    if first == last:
        raise UsageError(f"{package} {releases[first].version} is a single release: there is nothing between two")
    return [*releases[first : last + 1]]


def place_of(package: str, releases: Sequence[Release], version: str) -> int:
    """Where a version is among the releases; refuses one that isn't, with the nearest."""
    try:
        return [Version(release.version) for release in releases].index(Version(version))
    except (InvalidVersion, ValueError):
        raise unknown(f"release of {package}", version, [each.version for each in reversed(releases)]) from None


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The cells of one failure that the question is about: as reported, where the options don't say otherwise."""
    if not args.cell:
        if not args.failure:
            raise UsageError(f"--failure names what to bisect: {', '.join(failures())}")
        if args.failure not in failures():
            raise unknown("failure", args.failure, list(failures()))
        failure = failures()[args.failure]
        if failure.reported:
            for axis in ("variant", "strategy", "checkpointing", "precision"):
                setattr(args, axis, getattr(args, axis) or getattr(failure.reported, axis))
        args.variant = args.variant or "broken"
    cells = [
        cell
        for cell in commands.wanted(args)
        if args.cell
        or ((args.precision or cell.precision == "fp32") and (args.world or cell.world_size == default_world(cell)))
    ]
    if len({cell.failure for cell in cells}) > 1:
        raise UsageError("a bisect is about one failure: give cells of one")
    if len(cells) > SEVERAL:
        raise UsageError(
            f"that is {len(cells)} cells, and a bisect is about {SEVERAL} at most:"
            " name fewer with --variant, --strategy and --checkpointing, for instance --strategy zero2"
        )
    return cells


def bad(text: str) -> list[str]:
    """The outcomes that count as the failure: ``raises``, or with a signature, ``raises:other``."""
    words = list(listed(text))
    outcomes = [str(outcome) for outcome in Outcome if outcome not in (Outcome.TRAINS, Outcome.INVALID)]
    for word in words:
        if word.partition(":")[0] not in outcomes:
            raise unknown("outcome", word, outcomes)
    return words
