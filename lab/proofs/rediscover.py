"""Failures of the catalogue, looked for as if nobody knew them: how much of what is known a search would have met."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import msgspec

from faultline import strategies as every_strategy
from faultline.base.errors import EXIT_AS_EXPECTED, unknown
from faultline.base.markdown import headed, row
from faultline.base.packages import TODAY
from faultline.base.text import count
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.export.prove import REPRODUCING
from faultline.observations import measured
from faultline.runs import storage
from faultline.runs.engines import LOCAL
from faultline.runs.storage import RunFolder
from faultline.stacks import environments
from lab.explore import case, command
from lab.explore.search import Stage
from lab.programs import sampling

KIND = "rediscover"
ROWS = "met.jsonl"


@dataclass(frozen=True)
class Request:
    """Which failures to look for (none: all that a plain loop shows), for how long each, and from which seed."""

    names: tuple[str, ...] = ()
    minutes: float = 15.0
    seed: int = 0
    workers: int = 0
    resume: bool = False


class Asked(msgspec.Struct, frozen=True):
    """What a search that goes on is asked as before."""

    names: tuple[str, ...]
    minutes: float
    seed: int


@dataclass(frozen=True)
class Looked:
    """What came of looking for a failure: after how many minutes it was met, in which smallest program, if it was."""

    failure: str
    stack: str
    minutes: float
    programs: int
    spec: str = ""


def run(request: Request) -> int:
    """Look for each failure blind, and print what was met."""
    if request.resume:
        folder = storage.latest_run(kind=KIND)
        request = replace(request, **msgspec.structs.asdict(msgspec.convert(folder.info().request, Asked)))
    else:
        chosen(request.names)  # a name that there isn't makes no folder
        folder = storage.new_run(kind=KIND)
        folder.describe(request={"names": request.names, "minutes": request.minutes, "seed": request.seed})
    rows = read(folder)
    for failure in chosen(request.names):
        if failure.name in {each.failure for each in rows}:
            continue
        rows.append(looked_for(failure, request))
        with open(folder.path / ROWS, "a") as file:
            file.write(json.dumps(asdict(rows[-1])) + "\n")
        print(line(rows[-1]), flush=True)
    folder.describe(finished=True)
    print("\n".join(table(rows)))
    met = sum(bool(each.spec) for each in rows)
    print(f"{met} of {count(len(rows), 'failure')} met; results: {folder.shown}")
    return EXIT_AS_EXPECTED


def chosen(names: Sequence[str]) -> list[Failure]:
    """The failures by name, or all that a plain loop shows; raises UsageError for a name that there isn't."""
    every = failures()
    if wrong := [name for name in names if name not in every]:
        raise unknown("failure", wrong[0], [*every])
    return [every[name] for name in names] or [each for each in every.values() if by_a_loop(each)]


def by_a_loop(failure: Failure) -> bool:
    """Whether a broken variant is a plain loop, as most programs are."""
    return any(variant.broken and not variant.trainer for variant in failure.variants)


def looked_for(failure: Failure, request: Request) -> Looked:
    """One exploration, on the stack that has the failure, of somebody who knows nothing of it."""
    stack = (failure.reported.stack if failure.reported else "") or TODAY
    under = strategies(failure, stack)
    asked = command.Request(request.minutes, 0, request.seed, under, request.workers, stack=stack, without=failure.name)
    environment = environments.chosen(stack, "")
    asked, folder, _ = command.begun(asked, environment)
    search = command.prepared(asked, folder)
    started = time.monotonic()
    with LOCAL.warm() as engine:
        command.look(replace(asked, engine=engine), environment, folder, search)
    minutes = (time.monotonic() - started) / 60
    spec = json.dumps(search.met.as_json()) if search.met else ""
    return Looked(failure.name, stack, round(minutes, 1), search.funnel[Stage.PROGRAMS], spec)


def strategies(failure: Failure, stack: str) -> tuple[str, ...]:
    """The usual strategies, with the one that most has the failure on a stack where none of these does."""
    shows = Counter(
        cell.strategy
        for cell, (outcome, _) in measured.outcomes(failure, stack).items()
        if cell.broken and outcome in REPRODUCING and every_strategy.distributed(cell.strategy)
    )
    usual = sampling.under()
    return usual if not shows or shows.keys() & {*usual} else (*usual, shows.most_common(1)[0][0])


def read(folder: RunFolder) -> list[Looked]:
    """What a folder has already."""
    file = folder.path / ROWS
    return [msgspec.json.decode(text, type=Looked) for text in file.read_text().splitlines()] if file.exists() else []


def line(looked: Looked) -> str:
    """One failure, as it comes."""
    how = f"met after {looked.minutes} min: {looked.spec}" if looked.spec else f"not met in {looked.minutes} min"
    return f"{looked.failure} on {looked.stack}: {how}"


def table(rows: Sequence[Looked]) -> list[str]:
    """All of them, as docs/explore.md has them."""
    shown = []
    for each in rows:
        met = each.spec and case.parse(each.spec).words
        after = str(each.minutes) if met else f"not met in {each.minutes}"
        shown.append(row(f"`{each.failure}`", each.stack, after, met))
    return headed(("failure", "stack", "minutes", "smallest program"), shown)
