"""Is a candidate stack safe: the same cells on it and on a baseline, and again what changed."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from faultline.base.errors import NeverReady, UsageError
from faultline.base.packages import STACK, TODAY, stack_name, untagged
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.releases import coverage, given_stacks, is_safe_view, recorded, sampling, side_by_side
from faultline.releases.changes import Comparison
from faultline.releases.coverage import Reach
from faultline.releases.is_safe_view import UpgradeAnswer
from faultline.releases.sampling import USUAL, How
from faultline.releases.side_by_side import Both, RegressionWatch
from faultline.runs import campaigns, engines, estimates, executed
from faultline.runs.campaigns import Campaign, Measured
from faultline.runs.engines import LOCAL, Engine, Pool
from faultline.stacks import environments, requests
from faultline.stacks.environments import pins
from faultline.stacks.requests import Stack

FIRST = 10  # cells that run on both stacks before the rest of a baseline that nobody has measured
RECORDING = 1.3  # times as long takes a cell of which is recorded what it executes
FEW = 4 * FIRST  # cells that are still to be measured or recorded: of so few, none runs ahead of the others


@dataclass(frozen=True)
class IsSafeRequest:
    """What to judge and on which baseline, as people have it; `python` names the baseline by an interpreter instead.

    `fresh` takes no cached results. `whole` asks for all selected cells, with the remedies of mechanisms, `affected`
    for those that execute what changed and a sample of the others. `fail_fast` ends at the first regression. `known`
    runs nothing: recorded runs answer.
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
    known: bool = False


def run(request: IsSafeRequest) -> int:
    """Whether a candidate is safe on a baseline: exit code 0 if it is or changes nothing, 1 if not, 3 if that can't be
    known."""
    cells = select(failures(), request.selection)
    engines.check_cells(cells, request.engine)
    every = request.whole or sampling.names_cells(request.selection)
    if not every:
        cells = sampling.usual_cells(cells)
    if not cells:
        raise UsageError("no cell matches all of these options")
    base, notes = given_stacks.baseline(request.base, request.python)
    candidate = given_stacks.read(request.candidate, given_stacks.expected_versions(base), "as in the baseline")
    if candidate.text or not candidate.notes:
        on(base, "", candidate.text)  # a mistake in the question is reported before anything runs
    if request.known:
        answer = recorded.answer_from_records(base, candidate.text, cells)
        answer = replace(answer, notes=(*notes, *candidate.notes))
        is_safe_view.terminal(Console(), answer)
        return answer.comparison.verdict.exit_code
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
    print(f"results: {campaign.folder.shown}/summary.md, verdict.json")
    return answer.comparison.verdict.exit_code


def ask(campaign: Campaign, candidate: str, base: Stack, cells: Sequence[Cell], how: How = USUAL) -> UpgradeAnswer:
    """Run cells on both stacks, and again those that changed.

    That both are the same is known before an environment is made, and what can't be installed before any cell runs.
    """
    text = " ".join(candidate.split())
    if given_stacks.is_same(base, text):
        return UpgradeAnswer(
            text, base.name, (), Comparison(identical=True), stack=_line(given_stacks.expected_versions(base))
        )
    names = (base.name, f"{text} on {base.name}")
    old = campaigns.resolved(campaign, names[0], base)
    changed_to = on(base, old.lock, text) if old.lock else None
    new = campaigns.resolved(campaign, names[1], changed_to) if changed_to else Measured(names[1])
    changed = given_stacks.differing(pins(old.lock), pins(new.lock), removed=not base.here) if new.lock else []
    if changed and changed_to:
        campaigns.note(f"{names[0]}, and {names[1]}: an environment that isn't there is made, in about a minute")
        old = campaigns.measure(campaign, names[0], base, [])
        new = campaigns.measure(campaign, names[1], changed_to, [])
    known_as = is_safe_view.baseline_name(base.name)
    unusable = f"{known_as}: {old.unusable}" if old.unusable else ""
    if new.unusable and not unusable:
        unusable = f"{text} on {known_as}: {new.unusable}"
    covers, lines = Reach(), list[str]()
    if not unusable and changed:
        both = Both(campaign, (old, new), RegressionWatch(how.fail_fast))
        comparison, covers, lines = measure_and_compare(both, changed, cells, how)
    else:
        comparison = Comparison(unusable=unusable, identical=not unusable)
    line = _line(pins(old.lock) or given_stacks.expected_versions(base))
    repeat = repeatable(base, text, new)
    return UpgradeAnswer(text, base.name, changed, comparison, repeat, line, covers, lines)


def measure_and_compare(
    both: Both, changed: Sequence[tuple[str, str, str]], cells: Sequence[Cell], how: How
) -> tuple[Comparison, Reach, list[str]]:
    """Cells on both stacks, in the order of what they execute; gives also how much of the change this reaches, and in
    lines what did not run.

    If nothing is recorded of what they execute, one cell of each failure runs ahead of the recording, which takes
    minutes: a first regression must not wait for it.
    """
    covers, asked, lines = Reach(), cells, list[str]()
    recording = executed.lacking(both.environments[0], cells)
    packages = [name for name, _, _ in changed]
    plain = coverage.plainest(cells, packages)
    campaigns.note(foreseen(both, recording, sampling.at_most(cells, plain, how)))
    first = sampling.one_of_each(cells) if len(recording) > FEW else []
    ended = both.end(first)
    if not ended:
        covers = reached(both, packages, cells, plain)
        cells = [*dict.fromkeys([*first, *covers.in_order(sampling.cells_to_run(covers, cells, how))])]
        lines = sampling.narrowing(covers, asked, cells, how, packages)
        # If much of a baseline is still to be measured, a first regression would be seen only after that.
        if len(both.to_measure(cells)[0]) > FEW:
            first = cells[: len(first) + FIRST]
            ended = both.end(first)
    comparison, ran = side_by_side.compare(both, first if ended else cells)
    covers = covers.within(ran)
    covers = covers if comparison.unusable else on_candidate(both, covers)
    early = sampling.early_end(len(cells) - len(ran)) if both.watch.enough else []
    return comparison, covers, [*lines, *early, *covers.lines()]


def foreseen(both: Both, recording: Sequence[Cell], cells: Sequence[Cell]) -> str:
    """What is still to be run, and how long that takes, in words."""
    sides, workers = both.to_measure(cells), both.campaign.workers or both.campaign.engine.room()
    seconds = RECORDING * estimates.wall_seconds(recording, recorders(both.campaign))
    seconds += sum(estimates.wall_seconds(side, workers) for side in sides)
    old, new = map(len, sides)
    parts = [f"at most {count(new, 'cell')} on the candidate, and {old} on the baseline if no others fail"]
    parts += [f"{count(len(recording), 'cell')} to see what cells execute"] if recording else []
    return (
        f"to run: {', '.join(parts)}: {estimates.about(seconds)} with {count(workers, 'worker')};"
        " what changes runs again"
    )


def narrowed(answer: UpgradeAnswer, cells: Sequence[Cell], how: How) -> Comparison:
    """What an answer about every cell would have been if fewer had run."""
    whole = answer.comparison
    if whole.unusable or whole.identical:
        return whole
    some = {*sampling.cells_to_run(answer.reach, cells, how)}
    return replace(
        whole,
        cells=len(some),
        compared=min(whole.compared, len(some)),
        trained=min(whole.trained, len(some)),
        recorded=min(whole.recorded, len(some)),
        unproven=whole.unproven * len(some) // whole.cells,
        changes=tuple(change for change in whole.changes if change.cell in some),
    )


def reached(both: Both, packages: Sequence[str], cells: Sequence[Cell], plain: Collection[Cell]) -> Reach:
    """What of the packages that changed cells execute; `plain` are the plainest of them."""
    try:
        return coverage.measure_coverage(both.environments, packages, cells, plain, recorders(both.campaign))
    except NeverReady:  # which the measurement will say
        return Reach()


def on_candidate(both: Both, covers: Reach) -> Reach:
    """What cells reach, with what they execute of the candidate alone."""
    with contextlib.suppress(NeverReady):
        return covers.on(both.environments[1], recorders(both.campaign))
    return covers


def recorders(campaign: Campaign) -> int:
    """How many workers record functions: on this machine, whichever one measures."""
    return campaign.workers if isinstance(campaign.engine, Pool) else LOCAL.room()


def _line(versions: Mapping[str, str]) -> str:
    return stack_name({name: version for name, version in versions.items() if name in STACK})


def on(base: Stack, lock: str, candidate: str) -> Stack:
    """A candidate's stack: its requirements, with all else as a baseline resolved it; or a whole stack by name or date.

    A baseline with a date dates what the candidate adds.
    """
    if base.here or requests.whole(candidate):
        return requests.parse(candidate)
    return requests.changed(candidate, lock.splitlines(), base.asof)


def repeatable(base: Stack, candidate: str, measured: Measured) -> str:
    """What STACK must be to repeat a cell: the requirements, or the versions under test on another baseline."""
    if base.here:
        return candidate
    versions = {name: version for name, version in pins(measured.lock).items() if name in STACK}
    return " ".join(f"{name}=={version}" for name, version in untagged(versions).items())
