"""Is a candidate stack safe: the same cells on it and on a baseline, and again what changed."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console

from faultline.base.errors import NeverReady, UsageError
from faultline.base.packages import STACK, TODAY, stack_name, untagged
from faultline.base.text import cut
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.releases import changes, is_safe_view, reach, scope, sides
from faultline.releases.changes import Change, Comparison, Kind
from faultline.releases.is_safe_view import Answer
from faultline.releases.reach import Reach
from faultline.releases.scope import USUAL, How
from faultline.runs import campaigns, devices
from faultline.runs.campaigns import Campaign, Enough, Measured
from faultline.runs.driver import Engine
from faultline.runs.pool import LOCAL, Pool
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, requests
from faultline.stacks.environments import pins
from faultline.stacks.requests import Stack

FIRST = 10  # cells that run on both stacks before the rest of a baseline that nobody has measured


@dataclass(frozen=True)
class Request:
    """What to judge and on which baseline, as people have it; `python` names the baseline by an interpreter instead.

    `fresh` takes no cached results. `whole` asks for all selected cells, with the remedies of mechanisms, `affected`
    for those that execute what changed and a sample of the others. `fail_fast` ends at the first regression.
    """

    candidate: str
    selection: Selection
    base: str = TODAY
    whole: bool = False
    workers: int = 1
    resume: bool = False
    python: str = ""
    fresh: bool = False
    affected: bool = False
    fail_fast: bool = False
    engine: Engine = LOCAL


def run(request: Request) -> int:
    """Whether a candidate is safe on a baseline: exit code 0 if it is or changes nothing, 1 if not, 3 if that can't be
    known."""
    cells = devices.runnable(request.selection, request.engine)
    every = request.whole or scope.named(request.selection)
    if not every:
        cells = scope.default(cells)
    if not cells:
        raise UsageError("no cell matches all of these options")
    base, notes = sides.baseline(request.base, request.python)
    candidate = sides.read(request.candidate, sides.expected(base), "as in the baseline")
    if candidate.text or not candidate.notes:
        on(base, "", candidate.text)  # a mistake in the question is reported before anything runs
    if base.here:
        environments.ready(base)  # and a lack, before there is a folder
    asked: dict[str, object] = {
        "candidate": candidate.text,
        "base": [base.name, *base.requirements],
        "cells": [cell.id for cell in cells],
    }
    asked |= {"affected": True} if request.affected else {}
    campaign = campaigns.begin("is-safe", asked, request.workers, request.resume, request.fresh, request.engine)
    for note in (*notes, *candidate.notes):
        campaigns.note(note)
    how = How("affected" if request.affected else "every" if every else "usual", request.fail_fast)
    answer = replace(ask(campaign, candidate.text, base, cells, how), notes=(*notes, *candidate.notes))
    is_safe_view.write(campaign.folder.path, answer)
    is_safe_view.terminal(Console(), answer)
    print(f"results: {campaign.folder.shown}/summary.md, verdict.json, report.html")
    return answer.comparison.verdict.exit_code


def ask(campaign: Campaign, candidate: str, base: Stack, cells: Sequence[Cell], how: How = USUAL) -> Answer:
    """Run cells on both stacks, and again those that changed.

    That both are the same is known before an environment is made, and what can't be installed before any cell runs.
    """
    text = " ".join(candidate.split())
    if sides.same(base, text):
        return Answer(text, base.name, (), Comparison(identical=True), stack=_line(sides.expected(base)))
    names = (base.name, f"{text} on {base.name}")
    old = campaigns.resolved(campaign, names[0], base)
    changed_to = on(base, old.lock, text) if old.lock else None
    new = campaigns.resolved(campaign, names[1], changed_to) if changed_to else Measured(names[1])
    changed = packages(pins(old.lock), pins(new.lock), removed=not base.here) if new.lock else []
    if changed and changed_to:
        campaigns.announce(campaign, cells, 2, f"{names[0]}, and {names[1]}; what changes runs again")
        old = campaigns.measure(campaign, names[0], base, [])
        new = campaigns.measure(campaign, names[1], changed_to, [])
    known_as = is_safe_view.named(base.name)
    unusable = f"{known_as}: {old.unusable}" if old.unusable else ""
    if new.unusable and not unusable:
        unusable = f"{text} on {known_as}: {new.unusable}"
    covers, lines, asked, watch = Reach(), list[str](), cells, Watch(how.fail_fast)
    if not unusable and changed:
        covers = reached(campaign, (old, new), changed, cells)
        cells = covers.ordered(scope.some(covers, cells, how))
        comparison, ran = compare(campaign, (old, new), cells, watch)
        covers = covers.within(ran)
        covers = covers if comparison.unusable else on_candidate(campaign, new, covers)
        left_out = scope.narrowing(covers, asked, cells, how, [name for name, _, _ in changed])
        lines = [*left_out, *scope.early(len(cells) - len(ran)), *covers.lines()]
    else:
        comparison = Comparison(unusable=unusable, identical=not unusable)
    line = _line(pins(old.lock) or sides.expected(base))
    repeat = repeatable(base, text, new)
    return Answer(text, base.name, changed, comparison, repeat, line, covers, lines)


def narrowed(answer: Answer, cells: Sequence[Cell], how: How) -> Comparison:
    """What an answer about every cell would have been if fewer had run."""
    whole = answer.comparison
    if whole.unusable or whole.identical:
        return whole
    some = {*scope.some(answer.reach, cells, how)}
    return replace(
        whole,
        cells=len(some),
        compared=min(whole.compared, len(some)),
        unproven=whole.unproven * len(some) // whole.cells,
        changes=tuple(change for change in whole.changes if change.cell in some),
    )


def reached(
    campaign: Campaign, both: tuple[Measured, Measured], changed: Sequence[tuple[str, str, str]], cells: Sequence[Cell]
) -> Reach:
    """What of the packages that changed cells execute."""
    old, new = (campaigns.ready(Stack(each.name), each.lock) for each in both)
    try:
        return reach.of((old, new), [name for name, _, _ in changed], cells, recorders(campaign))
    except NeverReady:  # which the measurement will say
        return Reach()


def on_candidate(campaign: Campaign, new: Measured, covers: Reach) -> Reach:
    """What cells reach, with what they execute of the candidate alone."""
    with contextlib.suppress(NeverReady):
        return covers.on(campaigns.ready(Stack(new.name), new.lock), recorders(campaign))
    return covers


def recorders(campaign: Campaign) -> int:
    """How many workers record functions: on this machine, whichever one measures."""
    return campaign.workers if isinstance(campaign.engine, Pool) else LOCAL.room()


def _line(versions: Mapping[str, str]) -> str:
    return stack_name({name: version for name, version in versions.items() if name in STACK})


def packages(before: Mapping[str, str], after: Mapping[str, str], removed: bool = True) -> list[tuple[str, str, str]]:
    """Name, old and new version of each package that differs; an empty version is that of one that isn't there."""
    names = sorted({*after, *(before if removed else ())})
    return [(name, before.get(name, ""), after.get(name, "")) for name in names if before.get(name) != after.get(name)]


def on(base: Stack, lock: str, candidate: str) -> Stack:
    """A candidate's stack: its requirements, with all else as a baseline resolved it; or a whole stack by name or date.

    A baseline with a date dates what the candidate adds.
    """
    words = candidate.split()
    if base.here or (len(words) == 1 and (words[0] in requests.named() or re.fullmatch(r"\d{4}-\d\d-\d\d", words[0]))):
        return requests.parse(candidate)
    return requests.changed(candidate, lock.splitlines(), base.asof)


def compare(
    campaign: Campaign, both: tuple[Measured, Measured], cells: Sequence[Cell], watch: "Watch"
) -> tuple[Comparison, Sequence[Cell]]:
    """Measure cells on both stacks, then as often as it takes those whose change is in doubt; gives also which ran."""
    runs: tuple[list[Measured], list[Measured]] = ([], [])
    repeated: Counter[str] = Counter()
    wanted = list(cells)
    # The baseline goes first: if much of it is still to be measured, a first regression would be seen only after that.
    if campaigns.lacking(campaign, shared(campaign, both[0]), Stack(both[0].name), cells) > 4 * FIRST:
        on_both(campaign, both, wanted[:FIRST], 0, watch)
        wanted = wanted[:FIRST] if watch.enough else wanted
    while True:
        measured = on_both(campaign, both, wanted, len(runs[0]), watch)
        if measured[-1].unusable:
            return Comparison(unusable=f"{measured[-1].name}: {measured[-1].unusable}"), cells
        for side, each in zip(runs, measured, strict=True):
            side.append(each)
        if watch.enough:
            cells = [cell for cell in cells if cell.id in runs[1][0].outcomes]
        repeated.update(cell.id for cell in wanted if len(runs[0]) > 1)
        comparison = changes.compare(cells, *([part.results for part in side] for side in runs))
        wanted = changes.pending(comparison, repeated)
        if not wanted:
            return comparison, cells
        campaigns.note(f"{len(wanted)} of {len(comparison.changes)} changed cells run again on both stacks")


def on_both(
    campaign: Campaign, both: tuple[Measured, Measured], cells: Sequence[Cell], again: int, watch: "Watch"
) -> list[Measured]:
    """Measure cells on the baseline and then on the candidate; the last has no results where a stack is unusable."""
    measured: list[Measured] = []
    for stack in both:
        name = f"{shared(campaign, stack)}{f' again {again}' if again else ''}"
        campaigns.part(campaign, name).describe(lock=stack.lock)
        watch.before = {entry.cell: entry for entry in measured[0].results} if measured and not again else {}
        measured.append(campaigns.measure(campaign, name, Stack(stack.name), cells, again, watch.see))
        if measured[-1].unusable or (watch.enough and watch.before):
            break
    return measured


@dataclass
class Watch:
    """Reports a candidate's first regression as soon as a result shows it and, if asked, ends the measurement.

    It is made when both environments are ready: from `began` on, a clock in seconds, the report says how long it took.
    """

    fail_fast: bool = False
    before: Mapping[Cell, Result] = field(default_factory=dict)
    first: Change | None = None
    began: float = field(default_factory=time.monotonic)

    @property
    def enough(self) -> bool:
        return self.fail_fast and self.first is not None

    def see(self, entry: Result) -> None:
        if entry.cell not in self.before:
            return
        change = changes.changed(entry.cell, [self.before[entry.cell]], [entry])
        if change and change.kind in (Kind.DIVERGES, Kind.REGRESSED) and not self.first:
            self.first = change
            what = f"{self.before[entry.cell].did} → {entry.did}"
            when = f"first regression, {time.monotonic() - self.began:.0f} s after both environments were ready"
            campaigns.note(cut(f"{when}: {entry.cell.id} {change.kind}: {what}: {change.error}", 300))
        if self.enough:
            raise Enough


def shared(campaign: Campaign, stack: Measured) -> str:
    """The name under which a campaign has results of a stack's packages; they may have been another question's."""
    parts = [RunFolder(file.parent).info() for file in campaign.folder.path.glob("*/run.json")]
    return min((part.name for part in parts if part.lock == stack.lock and part.stack), default=stack.name)


def repeatable(base: Stack, candidate: str, measured: Measured) -> str:
    """What STACK must be to repeat a cell: the requirements, or the versions under test on another baseline."""
    if base.here:
        return candidate
    versions = {name: version for name, version in pins(measured.lock).items() if name in STACK}
    return " ".join(f"{name}=={version}" for name, version in untagged(versions).items())
