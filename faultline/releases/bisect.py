"""Bisect: between which two releases of a package cells change what they do, and which other package did it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from faultline.base.axes import NAMES
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, UsageError, unknown
from faultline.base.packages import NEEDED
from faultline.catalogue.loading import failure_named, failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell, split_values
from faultline.cells.selection import Selection, select
from faultline.observations import measured
from faultline.releases import bisect_view
from faultline.releases.bisection import AGREE, Bisection, Question
from faultline.runs import campaigns, engines
from faultline.runs.campaigns import Campaign
from faultline.runs.engines import LOCAL, Engine
from faultline.stacks import index, requests
from faultline.stacks.environments import pins
from faultline.stacks.index import Release

Direction = Literal["", "introduced", "fixed"]
SEVERAL = 6  # cells that one question may be about


@dataclass(frozen=True)
class BisectRequest:
    """A change to look for among the releases of a package, from the `oldest` to the `newest`.

    Without a direction, the newest release decides. `others` is the rest of the stack: as of each release's date, or
    as installed. `bad` has the outcomes that count as the failure; `fresh` takes no cached results.
    """

    package: str
    selection: Selection
    direction: Direction = ""
    others: Literal["dated", "fixed"] = "dated"
    oldest: str = ""
    newest: str = ""
    bad: str = ""
    blame: bool = False
    workers: int = 1
    resume: bool = False
    fresh: bool = False
    engine: Engine = LOCAL


def run(request: BisectRequest) -> int:
    """Bisect, print the answer, and write bisect.json; the exit code says how it went."""
    package = requests.requirement(request.package)
    known = {*NEEDED, *pins("\n".join(requests.installed()))}
    if package not in known:
        raise unknown("package", request.package, sorted(known))
    cells = cells_asked(request.selection, request.engine)
    failure = failures()[cells[0].failure]
    introduced = request.direction == "introduced"
    question = Question(failure, cells, package, introduced, request.others == "dated", bad(request.bad))
    asked = {
        "package": package,
        "cells": [cell.id for cell in cells],
        "bad": question.bad,
        **{name: getattr(request, name) for name in ("direction", "others", "oldest", "newest")},
    }
    campaign, releases = begun(request, package, asked)
    bisection = Bisection(campaign, question, releases)
    campaigns.announce(campaign, cells, most_runs(len(releases)), f"that is the most for {len(releases)} releases")
    boundary = bisection.search()
    if not request.direction and boundary.after is None and boundary.before is not None:
        bisection.question = replace(question, introduced=True)  # no direction was given, and the newest shows it
        boundary = bisection.search()
    culprits = bisection.blame(boundary) if request.blame and boundary.complete else None
    record = bisect_view.record(bisection, boundary, culprits)
    (campaign.folder.path / "bisect.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)) + b"\n")
    campaign.folder.describe(finished=True)
    for line in bisect_view.lines(record):
        print(line)
    print(f"results: {campaign.folder.shown}/bisect.json")
    return EXIT_UNDECIDED if boundary.between else EXIT_AS_EXPECTED if boundary.complete else EXIT_UNEXPECTED


def most_runs(releases: int) -> int:
    """How many runs find a change if each run gives an answer: both ends, the halves between, both sides again."""
    return 1 + releases.bit_length() + 2 * (AGREE - 1)


def begun(request: BisectRequest, package: str, asked: Mapping[str, object]) -> tuple[Campaign, list[Release]]:
    """The campaign and its releases, which stay what they were when it began."""
    if request.resume:
        campaign = campaigns.begin("bisect", asked, request.workers, True, request.fresh, request.engine)
        if known := campaign.folder.info().releases:
            return campaign, [*known]
    releases = within(package, index.releases(package), request.oldest, request.newest)
    if not request.resume:
        campaign = campaigns.begin("bisect", asked, request.workers, False, request.fresh, request.engine)
    campaign.folder.describe(releases=tuple(releases))
    return campaign, releases


def within(package: str, releases: Sequence[Release], oldest: str, newest: str) -> list[Release]:
    """The releases from one to another; from what was newest on the day of the earliest stack, to today's."""
    days = [place for place, release in enumerate(releases) if "" < release.date <= requests.EARLIEST.isoformat()]
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


def cells_asked(selection: Selection, engine: Engine = LOCAL) -> list[Cell]:
    """The cells of one failure that the question is about: as reported, unless the selection names others."""
    if not selection.cells:
        selection = narrowed(selection)
    cells = select(failures(), selection)
    engines.check_cells(cells, engine)
    if not selection.cells:
        open_axes = [axis for axis in NAMES if not getattr(selection, axis)]
        pairs = [(cell, measured.usual(cell)) for cell in cells]
        cells = [cell for cell, usual in pairs if all(vars(cell)[axis] == vars(usual)[axis] for axis in open_axes)]
    if len({cell.failure for cell in cells}) > 1:
        raise UsageError("a bisect is about one failure: give cells of one")
    if len(cells) > SEVERAL:
        raise UsageError(
            f"that is {len(cells)} cells, and a bisect is about {SEVERAL} at most:"
            " name fewer with --variant, --strategy and --checkpointing, for instance --strategy zero2"
        )
    return cells


def narrowed(selection: Selection) -> Selection:
    """The selection with the axes that it leaves open as the failure was reported."""
    if not selection.failure:
        raise UsageError(f"bisect needs a failure: name it with --failure, one of {', '.join(failures())}")
    reported = failure_named(",".join(selection.failure)).reported
    if not reported:
        return replace(selection, variant=selection.variant or ("broken",))
    place: dict[str, Any] = {axis: getattr(selection, axis) or (value,) for axis, value in reported.place.items()}
    return replace(selection, **place)


def bad(text: str) -> list[str]:
    """The outcomes that count as the failure: ``raises``, or with a signature, ``raises:other``."""
    words = list(split_values(text))
    outcomes = [str(outcome) for outcome in Outcome if outcome not in (Outcome.TRAINS, Outcome.INVALID)]
    for word in words:
        if word.partition(":")[0] not in outcomes:
            raise unknown("outcome", word, outcomes)
    return words
