"""The commands of the timeline: run cells on monthly stacks, and draw what was measured."""

from __future__ import annotations

import argparse
import datetime
import shutil
from pathlib import Path

from rich.console import Console

from faultline import campaigns, commands, stacks, timeline
from faultline.errors import EXIT_AS_EXPECTED, UsageError
from faultline.matrix import Cell
from faultline.report import chart
from faultline.timeline import COMMITTED, Timeline

STRATEGIES = "ddp,zero2,zero3,fsdp1-full,fsdp2"


def run(args: argparse.Namespace) -> int:
    """Run cells on the ecosystem as of the first of each month and on today's stack; an interrupted run goes on."""
    cells = chosen(args)
    first = max(stacks.day(args.since), stacks.EARLIEST) if args.since else stacks.EARLIEST
    last = stacks.day(args.until) if args.until else datetime.date.today()
    if first > last:
        raise UsageError(f"--since {first} is after --until {last}")
    dates = [day.isoformat() for day in timeline.months(first, last)]
    dates += [] if args.until else [stacks.TODAY]
    if args.write and COMMITTED.exists():
        kept = timeline.read(COMMITTED)
        lost = {*kept.cells} - {cell.id for cell in cells} or {moment.date for moment in kept.moments} - {*dates}
        if lost:
            raise UsageError(f"WRITE=1 would lose what {COMMITTED.name} has and this run hasn't, such as {min(lost)}")
    request = {"cells": [cell.id for cell in cells], "since": args.since, "until": args.until}
    campaign = campaigns.begin("timeline", request, args.workers, args.resume)
    found = timeline.run(campaign, dates, cells)
    folder = campaign.folder.path
    timeline.write(folder / COMMITTED.name, found)
    chart.terminal(Console(), found)
    chart.page(folder / "timeline.html", found)
    print(f"results: {campaign.folder.shown}/timeline.json, timeline.html")
    if args.write:
        COMMITTED.parent.mkdir(exist_ok=True)
        shutil.copy(folder / COMMITTED.name, COMMITTED)
        draw_committed(found)
    return EXIT_AS_EXPECTED


def chosen(args: argparse.Namespace) -> list[Cell]:
    """The broken variants at both levels under one strategy of each kind, unless the options say otherwise."""
    if not args.cell:
        args.variant = args.variant or "*broken"
        args.strategy = args.strategy or STRATEGIES
        args.precision = args.precision or "fp32"
        args.world = args.world or "2"
    return commands.wanted(args)


def draw(args: argparse.Namespace) -> int:
    """Draw a timeline from its data, the committed one by default, which also gets its picture and page anew."""
    file = Path(args.file) if args.file else COMMITTED
    found = timeline.read(file)
    chart.terminal(Console(), found)
    if not args.file:
        draw_committed(found)
    return EXIT_AS_EXPECTED


def draw_committed(found: Timeline) -> None:
    """Write the picture and the page beside the committed data."""
    picture, page = COMMITTED.with_suffix(".svg"), COMMITTED.with_suffix(".html")
    picture.write_text(chart.picture(found), encoding="utf-8")
    chart.page(page, found)
    print(f"drawn: {picture.relative_to(COMMITTED.parent.parent)}, {page.name}")
