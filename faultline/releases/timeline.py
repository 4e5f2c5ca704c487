"""The command of the timeline: run cells on monthly stacks, and show what was measured."""

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from faultline import strategies
from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.packages import TODAY, untagged
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.observations import recording, store
from faultline.observations import timeline as observed
from faultline.observations.store import Stack
from faultline.observations.timeline import UNINSTALLABLE, Timeline
from faultline.releases import timeline_view
from faultline.runs import campaigns, engines
from faultline.runs.campaigns import Measured
from faultline.runs.engines import LOCAL, Engine
from faultline.stacks import requests


@dataclass(frozen=True)
class TimelineRequest:
    """Cells to run on each month's stack between two dates; `write` makes the result a part of the committed timeline.

    `fresh` takes no cached results.
    """

    selection: Selection
    since: str = ""
    until: str = ""
    workers: int = 1
    resume: bool = False
    write: bool = False
    fresh: bool = False
    engine: Engine = LOCAL


def run(request: TimelineRequest) -> int:
    """Run cells on the ecosystem as of the first of each month and on today's stack; an interrupted run goes on."""
    cells = engines.runnable(narrowed(request.selection), request.engine)
    first = max(requests.day(request.since), requests.EARLIEST) if request.since else requests.EARLIEST
    last = requests.day(request.until) if request.until else datetime.date.today()
    if first > last:
        raise UsageError(f"--since {first} is after --until {last}")
    dates = [day.isoformat() for day in months(first, last)]
    dates += [] if request.until else [TODAY]
    if request.write:
        check_complete(observed.committed(), dates, cells)
    asked = {"cells": [cell.id for cell in cells], "since": request.since, "until": request.until}
    campaign = campaigns.begin("timeline", asked, request.workers, request.resume, request.fresh, request.engine)
    campaigns.announce(campaign, cells, len(dates))
    measured = campaigns.measure_each(campaign, {date: requests.parse(date) for date in dates}, cells)
    timeline = gather(measured, cells)
    folder = campaign.folder.path
    observed.write(folder / "timeline.json", timeline)
    timeline_view.terminal(Console(), timeline)
    print(f"results: {campaign.folder.shown}/timeline.json")
    if request.write:
        check_stacks(observed.committed(), timeline)
        store.write(recording.with_timeline(store.everything(), timeline))
    return EXIT_AS_EXPECTED


def check_complete(before: Timeline, dates: Sequence[str], cells: Sequence[Cell]) -> None:
    """Raise UsageError if cells would have other months than the recorded ones: all need the same."""
    known = {stack.month for stack in before.stacks}
    if lost := known - {*dates}:
        raise UsageError(f"--write needs all months that are recorded, and {min(lost)} is not among these")
    others = sorted(cell.id for cell in before.cells.keys() - {*cells})
    if others and (new := {*dates} - known):
        raise UsageError(f"--write of a new month, {min(new)}, needs all cells that are recorded, such as {others[0]}")


def check_stacks(before: Timeline, after: Timeline) -> None:
    """Raise UsageError if what stays as it is recorded ran on other versions than what is new."""
    now = {stack.month: stack.versions for stack in after.stacks}
    moved = [stack.month for stack in before.stacks if stack.versions != now[stack.month]]
    others = sorted(cell.id for cell in before.cells.keys() - after.cells.keys())
    if moved and others:
        raise UsageError(
            f"nothing was written: the stack of {moved[0]} has other versions now, so --write needs all cells that are"
            f" recorded, such as {others[0]}"
        )


def narrowed(selection: Selection) -> Selection:
    """The broken variants at both levels under the usual strategies, unless the selection names others."""
    if selection.cells:
        return selection
    usual = tuple(name for name in strategies.usual_names() if strategies.distributed(name))
    return replace(
        selection,
        variant=selection.variant or ("*broken",),
        strategy=selection.strategy or usual,
        precision=selection.precision or ("fp32",),
        world_size=selection.world_size or (2,),
    )


def months(first: datetime.date, last: datetime.date) -> Iterator[datetime.date]:
    """The first day of each month from one date to another."""
    day = first.replace(day=1)
    while day <= last:
        if day >= first:
            yield day
        day = (day + datetime.timedelta(days=31)).replace(day=1)


def gather(measured: Sequence[Measured], cells: Sequence[Cell]) -> Timeline:
    """The timeline of stacks in their order; a cell that a stack has no result of is `uninstallable` there."""
    outcomes = [each.outcomes for each in measured]
    return Timeline(
        [Stack(each.name, untagged(each.versions), each.name, each.unusable) for each in measured],
        {cell: [did.get(cell.id, UNINSTALLABLE) for did in outcomes] for cell in cells},
    )
