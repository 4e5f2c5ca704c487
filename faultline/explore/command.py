"""`explore`: programs that nobody wrote, under every engine, until one of them trains wrongly."""

import json
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice

from faultline import strategies as every_strategy
from faultline.base.errors import EXIT_AS_EXPECTED, UsageError, unknown
from faultline.base.packages import TODAY, stack_name
from faultline.base.text import matches
from faultline.explore import findings, known, view
from faultline.explore.case import Case
from faultline.explore.findings import Finding
from faultline.explore.running import Runner
from faultline.explore.search import PROGRAMS, Search
from faultline.programs import drawing, sampling
from faultline.programs.fault import Fault
from faultline.programs.program import Program
from faultline.runs import devices, folders, storage
from faultline.runs.driver import Engine, Plan
from faultline.runs.pool import LOCAL
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, requests
from faultline.stacks.environments import Environment

KIND = "explore"
CHUNK = 50  # programs that run before what differs is shrunk
TIMES = 3  # that what is found has to show
PLANTED = 0.05  # of the programs
DIFFER = "differ"
NUMBERS = "numbers.json"  # in the folder of an exploration


@dataclass(frozen=True)
class Request:
    """How long to look, or at how many programs; from which seed, and under which strategies (none: the usual ones).

    Programs begin with what packages have a part in that changed `since` another stack. With `without`, nothing that is
    known of that failure counts, and the search ends as it is met.
    """

    minutes: float = 10.0
    specs: int = 0
    seed: int = 0
    strategies: tuple[str, ...] = ()
    workers: int = 0
    resume: bool = False
    engine: Engine = LOCAL
    stack: str = TODAY
    without: str = ""
    device: str = "cpu"
    since: str = ""


def strategies(patterns: Sequence[str]) -> tuple[str, ...]:
    """The strategies of several ranks that patterns name; the usual ones if there are none."""
    if not patterns:
        return sampling.under()
    names = [name for name in every_strategy.names() if matches(name, tuple(patterns))]
    if wrong := [each for each in patterns if not any(matches(name, (each,)) for name in every_strategy.names())]:
        raise unknown("strategy", wrong[0], every_strategy.names())
    if not (several := tuple(name for name in names if every_strategy.distributed(name))):
        raise UsageError("one process is what others are held against: name strategies of several ranks")
    return several


def run(request: Request) -> int:
    """Look for what nobody has reported, and show it."""
    environment = environments.chosen(request.stack, "")
    if request.engine.here:
        devices.check_device(request.device, environment.python)
    away = changed(request, environment)
    folder, search = begin(request, environment)
    explored = look(request, environment, folder, search, away)
    view.show(search, explored)
    print(f"results: {folder.shown}")
    return EXIT_AS_EXPECTED


def look(
    request: Request, stack: Environment, folder: RunFolder, search: Search, away: Collection[str] = frozenset()
) -> list[Finding]:
    """Draw, run and shrink until the time is over; gives the findings, or shows them if it is interrupted.

    Programs begin with what the packages have a part in that have moved `away` from another stack.
    """
    runner, ends = Runner(), time.monotonic() + 60 * request.minutes
    measuring = partial(measure, request, stack, runner, folder, search)
    source = drawing.drawn(request.seed, known.together(search.earlier, request.without), away)
    try:
        needed: list[Case] = []
        while not search.met:
            over = time.monotonic() > ends and not request.specs
            size = min(CHUNK, request.specs - search.funnel[PROGRAMS]) if request.specs else CHUNK
            first = request.without and needed  # what may be met ends the search
            programs = [] if over or first else islice(source, size)
            fresh = [*dict.fromkeys(case for each in programs for case in search.cases_of(*planted(each, request)))]
            if not needed and not fresh:
                break
            measuring([*dict.fromkeys([*needed, *fresh])])  # side by side: what is shrunk has few cases at a time
            search.sort(fresh)
            needed = search.shrink()
        again(request, stack, runner, folder, search)
        folder.describe(finished=True)
    except KeyboardInterrupt:
        view.show(search, keep(folder, search))
        raise
    explored = keep(folder, search)
    minutes = (time.monotonic() - ends) / 60 + request.minutes
    numbers = search.numbers(request.seed, minutes, stack_name(stack.versions))
    (folder.path / NUMBERS).write_text(json.dumps(asdict(numbers)))
    return explored


def changed(request: Request, stack: Environment) -> set[str]:
    """The packages that have another release on the stack than since when is asked."""
    if not request.since:
        return set()
    before = environments.pins(environments.resolve(requests.parse(request.since)))
    return {name for name, version in stack.versions.items() if before.get(name) != version}


def planted(program: Program, request: Request) -> tuple[Program, Fault | None]:
    """One program of twenty has a fault in it: how many of these are seen is what the search is worth."""
    choose = random.Random(f"planted/{request.seed}/{program.digest}")
    return drawing.planted(program, choose) if choose.random() < PLANTED else (program, None)


def begin(request: Request, stack: Environment) -> tuple[RunFolder, Search]:
    """A new folder, or the newest one with what it has."""
    earlier = [] if request.without else list(findings.explaining())
    search = Search(request.strategies or sampling.under(), earlier, request.without, request.device)
    if request.resume:
        folder = storage.latest_run(kind=KIND)
        folders.same_stack(folder, stack.versions)
        search.take(folders.entries(folder))
    else:
        folder = storage.new_run(kind=KIND)
        asked = {
            "seed": request.seed,
            "strategies": search.strategies,
            "device": request.device,
            "minutes": request.minutes,
        }
        folder.describe(request=asked, stack=stack_name(stack.versions))
    return folder, search


def measure(
    request: Request, stack: Environment, runner: Runner, folder: RunFolder, search: Search, cases: Sequence[Case]
) -> None:
    """Run the cases that have no result yet."""
    cells = [runner.add(case) for case in cases if case.cell not in search.results]
    if cells:
        plan = Plan(request.workers, stack, runner)
        folders.measure(
            cells, plan, folder, wrong=DIFFER, seen=lambda entry: search.take([entry]), engine=request.engine
        )


def again(request: Request, stack: Environment, runner: Runner, folder: RunFolder, search: Search) -> None:
    """Run what was found twice more, and count how often it does the same."""
    cells = [runner.add(each.shrunk.case) for each in search.clusters.values()]
    for number in range(2, TIMES + 1):
        once_more = RunFolder(folder.path / f"again-{number}")
        once_more.path.mkdir(exist_ok=True)
        once_more.describe(kind=KIND)
        plan = Plan(request.workers, stack, runner)
        folders.measure(cells, plan, once_more, wrong=DIFFER, seen=search.saw_again, engine=request.engine)


def keep(folder: RunFolder, search: Search) -> list[Finding]:
    """Write each finding as a folder beside the results, and what was known of the other differences."""
    made = [
        findings.write(folder.path / "findings", each.shrunk, 1 + search.steady[each.shrunk.case.cell])
        for each in search.clusters.values()
    ]
    broken = [json.dumps({"relation": words, "apart": where}) for words, where in search.broken.items()]
    (folder.path / "broken.jsonl").write_text("".join(f"{line}\n" for line in broken))
    set_aside = [
        json.dumps({"spec": case.as_json(), "known": [why.kind, why.name]}) for case, why in search.known.items()
    ]
    (folder.path / "known.jsonl").write_text("".join(f"{line}\n" for line in set_aside))
    return made
