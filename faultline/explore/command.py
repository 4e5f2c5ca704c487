"""`explore`: programs that nobody wrote, under every engine, until one of them trains wrongly."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from faultline import strategies as every_strategy
from faultline.base.errors import EXIT_AS_EXPECTED
from faultline.base.packages import versions
from faultline.explore import view
from faultline.explore.case import Case
from faultline.explore.running import Runner
from faultline.explore.search import PROGRAMS, Search
from faultline.programs import drawing, sampling
from faultline.programs.fault import Fault
from faultline.programs.program import Program
from faultline.runs import folders, storage
from faultline.runs.driver import Engine, Plan
from faultline.runs.pool import LOCAL
from faultline.runs.storage import RunFolder

KIND = "explore"
CHUNK = 120  # programs that run before what differs is shrunk
PLANTED = 0.05  # of the programs
DIFFER = "differ"


@dataclass(frozen=True)
class Request:
    """How long to look, or at how many programs; from which seed, and under which strategies (none: the usual ones)."""

    minutes: float = 10.0
    specs: int = 0
    seed: int = 0
    strategies: tuple[str, ...] = ()
    workers: int = 0
    resume: bool = False
    engine: Engine = LOCAL


def run(request: Request) -> int:
    """Look for what nobody has reported, and show it."""
    folder, search = begin(request)
    runner, ends = Runner(), time.monotonic() + 60 * request.minutes
    source = drawing.drawn(request.seed)
    try:
        while True:
            size = min(CHUNK, request.specs - search.funnel[PROGRAMS]) if request.specs else CHUNK
            cases = [case for each in islice(source, size) for case in search.cases_of(*planted(each, request))]
            if not cases:
                break
            measure(cases, request, runner, folder, search)
            search.sort(cases)
            while needed := search.shrink():
                measure(needed, request, runner, folder, search)
            if time.monotonic() > ends and not request.specs:
                break
        folder.describe(finished=True)
    finally:
        keep(folder, search)
        view.show(search)
    print(f"results: {folder.shown}")
    return EXIT_AS_EXPECTED


def planted(program: Program, request: Request) -> tuple[Program, Fault | None]:
    """One program of twenty has a fault in it: how many of these are seen is what the search is worth."""
    choose = random.Random(f"planted/{request.seed}/{program.digest}")
    return drawing.planted(program, choose) if choose.random() < PLANTED else (program, None)


def begin(request: Request) -> tuple[RunFolder, Search]:
    """A new folder, or the newest one with what it has."""
    usual = sampling.under()
    names = tuple(name for name in every_strategy.names() if name in (request.strategies or usual))
    search = Search(names)
    if request.resume:
        folder = storage.latest_run(kind=KIND)
        folders.same_stack(folder, versions())
        search.take(folders.entries(folder))
    else:
        folder = storage.new_run(kind=KIND)
        folder.describe(request={"seed": request.seed, "strategies": names, "minutes": request.minutes})
    return folder, search


def measure(cases: Sequence[Case], request: Request, runner: Runner, folder: RunFolder, search: Search) -> None:
    """Run the cases that have no result yet."""
    search.cases |= {case.cell: case for case in cases}
    cells = [runner.add(case) for case in cases if case.cell not in search.results]
    if cells:
        plan = Plan(request.workers, run=runner)
        folders.measure(
            cells, plan, folder, wrong=DIFFER, seen=lambda entry: search.take([entry]), engine=request.engine
        )


def keep(folder: RunFolder, search: Search) -> None:
    """Write what was found beside the results."""
    lines = []
    for found in search.found.values():
        shrunk = found.shrunk
        lines.append(
            json.dumps(
                {
                    "spec": shrunk.case.as_json(),
                    "did": list(shrunk.result.did),
                    "detail": shrunk.result.detail,
                    "where": {name: list(did) for name, did in shrunk.where.items()},
                    "cases": found.cases,
                    "minimal": shrunk.minimal,
                }
            )
        )
    (folder.path / "found.jsonl").write_text("".join(f"{line}\n" for line in lines))
    known = [
        json.dumps({"spec": search.cases[cell].as_json(), "known": [why.kind, why.name]})
        for cell, why in search.known.items()
    ]
    (folder.path / "known.jsonl").write_text("".join(f"{line}\n" for line in known))
