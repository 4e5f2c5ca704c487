"""`explore`: programs that nobody wrote, under every engine, until one of them trains wrongly."""

import random
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import msgspec

from faultline import strategies as every_strategy
from faultline.base.errors import EXIT_AS_EXPECTED, UsageError, unknown
from faultline.base.packages import TODAY, stack_name, untagged
from faultline.base.text import count, here, matches
from faultline.runs import engines, measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.engines import LOCAL, Engine
from faultline.runs.progress import UNLIKE_ALONE
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, requests
from faultline.stacks.environments import Environment
from lab.explore import findings, known, output, overview
from lab.explore.case import Case, Runner
from lab.explore.findings import Finding
from lab.explore.overview import Numbers
from lab.explore.search import Search, Stage
from lab.programs import drawing, sampling
from lab.programs.fault import Fault
from lab.programs.program import Program

KIND = "explore"  # of the folders
MINUTES = 10.0  # unless somebody says for how long
CHUNK = 50  # programs that run before what differs is shrunk
TIMES = 3  # that what is found has to show
PLANTED = 0.05  # of the programs
SAME = ("seed", "strategies", "device", "since", "loops")
"""What an exploration that goes on has to be asked as before."""


@dataclass(frozen=True)
class Request:
    """How long to look, or at how many programs; from which seed, and under which strategies (none: the usual ones).

    Trainers take longer than plain `loops`, which may be all that is looked at. What isn't given is the usual, or with
    `resume` what was given before. Programs begin with what packages have a part in that changed `since` another stack.
    """

    minutes: float | None = None
    specs: int = 0
    seed: int | None = None
    strategies: tuple[str, ...] = ()
    workers: int = 0
    resume: bool = False
    engine: Engine = LOCAL
    stack: str = TODAY
    device: str = ""
    since: str = ""
    loops: bool | None = None

    @property
    def as_json(self) -> dict[str, object]:
        """What an exploration that goes on has to know of it."""
        return {name: getattr(self, name) for name in ("minutes", "specs", *SAME)}


def strategies_named(patterns: Sequence[str]) -> tuple[str, ...]:
    """The strategies of several ranks that patterns name."""
    names = [name for name in every_strategy.names() if matches(name, tuple(patterns))]
    if wrong := [each for each in patterns if not any(matches(name, (each,)) for name in every_strategy.names())]:
        raise unknown("strategy", wrong[0], every_strategy.names())
    if not (several := tuple(name for name in names if every_strategy.distributed(name))):
        raise UsageError("one process is what others are held against: name strategies of several ranks")
    return several


@dataclass(frozen=True)
class Exploration:
    """A request with all that it leaves out, its stack and its folder, and what is known so far.

    `away` are the packages that have moved since the stack that it names: programs begin with what they have a part in.
    """

    request: Request
    stack: Environment
    folder: RunFolder
    search: Search
    away: Collection[str] = frozenset()
    engine: Engine = LOCAL
    runner: Runner = field(default_factory=Runner)

    def measure(self, cases: Sequence[Case]) -> None:
        """Run the cases that have no result yet."""
        missing = [case for case in cases if case.cell not in self.search.results]
        self.run(missing, self.folder, lambda entry: self.search.take([entry]))

    def measure_again(self) -> None:
        """Run what was found twice more, and count how often it does the same."""
        for number in range(2, TIMES + 1):
            once_more, results = RunFolder(self.folder.path / f"again-{number}"), list[Result]()
            once_more.path.mkdir(exist_ok=True)
            once_more.describe(kind=KIND)
            self.run(self.search.asked_again, once_more, results.append)
            self.search.saw_again({result.cell: result for result in results})

    def run(self, cases: Sequence[Case], folder: RunFolder, done: Callable[[Result], None]) -> None:
        """Run cases, with their results in a folder."""
        if cells := [self.runner.add(case) for case in cases]:
            batch = Batch(cells, self.stack, folder, run=self.runner)
            measurement.measure([batch], self.request.workers, self.engine, UNLIKE_ALONE, done)


def run(request: Request) -> int:
    """Look for what nobody has reported, and show it."""
    environment = environments.chosen(request.stack, "")
    begun = begin(request, environment)
    with request.engine.warm() as engine:
        explored = look(replace(begun, engine=engine))
    folder, came_to = begun.folder, overview.came_to(begun.folder.path)
    output.show(begun.search, explored)
    print(f"programs an hour: {60 * came_to.programs / max(came_to.minutes, 0.1):.0f}")
    output.publish(folder, explored, environment.python == sys.executable)
    print(next_step(folder, explored))
    return EXIT_AS_EXPECTED


def next_step(folder: RunFolder, explored: Sequence[Finding]) -> str:
    """What comes after an exploration: the gravest finding is read and kept, or others are looked for."""
    if not explored:
        return "There is no finding. Another --seed draws other programs, and a larger --minutes more of them."
    first = min(explored, key=overview.grave)
    keep = here(f"faultline maintain findings --keep {folder.shown}/{output.FINDINGS}/{first.name}")
    return f"next: read {first.name}, and keep what stands up to it: {keep}"


def look(exploration: Exploration) -> list[Finding]:
    """Draw, run and shrink until the time is over; gives the findings, or shows them if it is interrupted."""
    request, stack, folder, search = exploration.request, exploration.stack, exploration.folder, exploration.search
    before = overview.came_to(folder.path).minutes if (folder.path / overview.NUMBERS).exists() else 0.0
    began = time.monotonic() - 60 * before

    def came_to() -> Numbers:
        minutes = (time.monotonic() - began) / 60
        return overview.numbers_of(search, request.seed or 0, minutes, stack_name(stack.versions))

    fresh: list[Case] = []  # those that run, and aren't sorted yet
    try:
        replay_older(exploration)
        source = drawing.drawn(request.seed or 0, known.together(search.earlier), exploration.away)
        source = (each for each in source if not (request.loops and each.trainer))
        needed: list[Case] = []
        while True:
            over = not request.specs and time.monotonic() - began > 60 * (request.minutes or MINUTES)
            size = min(CHUNK, request.specs - search.funnel[Stage.PROGRAMS]) if request.specs else CHUNK
            programs = [] if over else islice(source, size)
            fresh = [*dict.fromkeys(case for each in programs for case in search.cases_of(*plant(each, request)))]
            if not needed and not fresh:
                break
            exploration.measure(
                [*dict.fromkeys([*needed, *fresh])]
            )  # side by side: what is shrunk has few cases at a time
            search.sort(fresh)
            fresh, needed = [], search.shrink()
            output.write_numbers(folder, came_to())  # for what goes on once this is killed
        exploration.measure_again()
        folder.describe(finished=True)
    except KeyboardInterrupt:
        search.sort(fresh)
        made = output.keep(folder, search, came_to())
        output.show(search, made)
        output.write_page(folder, made)
        print(f"go on: {here('faultline explore --resume')}")
        raise
    return output.keep(folder, search, came_to())


def replay_older(exploration: Exploration) -> None:
    """Run the findings first that were seen on other versions: one that does something else now explains nothing."""
    search, versions = exploration.search, untagged(exploration.stack.versions)
    old = [
        each
        for each in findings.every()
        if (each.case.strategy in search.strategies and each.case.device == search.device)
        and not untagged(each.seen.stack).items() <= versions.items()
    ]
    if old:
        print(f"{count(len(old), 'finding')} of other versions: their cells run first", file=sys.stderr)
    exploration.measure([each.case for each in old])
    search.replay(old)


def changed_packages(request: Request, stack: Environment) -> set[str]:
    """The packages that have another release on the stack than since when is asked."""
    if not request.since:
        return set()
    before = untagged(environments.pins(environments.resolve(requests.parse(request.since))))
    return {name for name, version in untagged(stack.versions).items() if before.get(name) != version}


def plant(program: Program, request: Request) -> tuple[Program, Fault | None]:
    """One program of twenty has a fault in it: how many of these are seen is what the search is worth."""
    choose = random.Random(f"planted/{request.seed or 0}/{program.digest}")
    return sampling.planted(program, choose) if choose.random() < PLANTED else (program, None)


def begin(request: Request, stack: Environment) -> Exploration:
    """An exploration in a new folder, or in the newest to go on with.

    Raises UsageError where the newest is of other options, or has come to its end, and for what can't be asked; then no
    folder is made.
    """
    newest = storage.latest_run(kind=KIND) if request.resume else None
    if newest:
        storage.same_stack(newest, stack.versions)
        request = resume(request, newest)
    else:
        usual: dict[str, Any] = {
            "seed": request.seed or 0,
            "strategies": request.strategies or sampling.under(),
            "device": request.device or "cpu",
        }
        request = replace(request, minutes=request.minutes or MINUTES, **usual)
    if request.engine.here:
        engines.check_device(request.device, stack.python)
    away = changed_packages(request, stack)
    folder = newest or storage.new_run(kind=KIND)
    folder.describe(request=request.as_json, stack=stack_name(stack.versions), finished=False)
    search = Search(request.strategies, list(findings.explaining()), request.device)
    search.take(storage.entries(folder))
    return Exploration(request, stack, folder, search, away)


def resume(request: Request, folder: RunFolder) -> Request:
    """The request that a folder is of, for as long as is asked now; `begin` says what it raises."""
    info = folder.info()
    before = msgspec.convert(info.request, Request)
    for name in SAME:
        given, had = getattr(request, name), getattr(before, name)
        if given not in (None, "", (), had):
            option = f"--{'strategy' if name == 'strategies' else name}"
            had = ",".join(had) if isinstance(had, tuple) else had or "left out"
            raise UsageError(f"{folder.path.name} has {option} {had}: leave {option} out, or start without --resume")
    minutes, specs = request.minutes or before.minutes, request.specs or before.specs
    if info.finished and (minutes, specs) == (before.minutes, before.specs):
        raise UsageError(f"{folder.path.name} is finished: a larger --minutes or --specs goes on with it")
    return replace(request, minutes=minutes, specs=specs, **{name: getattr(before, name) for name in SAME})
