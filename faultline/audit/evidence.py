"""The measurements of a case: cells that show it, remedies, and commands that repeat it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from faultline.audit.conditions import Case
from faultline.base.packages import TODAY
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import outcome_text
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.observations import answers, history, measured, remedies
from faultline.observations.ranges import Range
from faultline.observations.remedies import Fate
from faultline.stacks import requests


@dataclass(frozen=True)
class Observed:
    """How many cells show a case today, and on how many of the timeline's stacks they did, the last as of `last`.

    `pinned` are the stacks of stacks/ that showed it. `remedies` were tested by cells of the case, as `measured` says:
    today; or if these don't show it any more, by the bare mechanism's in the same places; or if that doesn't either, on
    the stack that the failure was reported on. If the project has a release for which the rules say otherwise, they are
    what these say. `whose` says it of a number of cells, if they aren't the case's own.
    """

    today: int
    of: int
    stacks: int
    of_stacks: int
    last: str
    pinned: tuple[str, ...]
    outcomes: tuple[str, ...]
    remedies: tuple[Fate, ...]
    measured: str
    whose: str
    upgrade: tuple[str, ...]
    commands: tuple[str, ...]


Measured = Mapping[str, Sequence[Observed]]
"""The evidence of each case of a finding, by the name of its failure."""


def evidence(failure: Failure, case: Case, versions: Mapping[str, Range]) -> Observed:
    """The measurements of a case, with the pinned release of a package if remedies do otherwise with it."""
    outcomes = measured.outcomes(failure)
    today = [cell for cell in case.shown if history.shows(failure, cell, outcomes[cell])]
    past = [sample for cell in case.shown for sample in history.observations_of(failure, cell)]
    dates = {sample.stack for sample in past} & {stack.month for stack in measured.months()} - {TODAY}
    showed = {sample.stack for sample in past if sample.shows}
    before = {each.did for each in past if each.shows and each.did}
    seen = {outcomes[cell] for cell in today} or before
    fixes = [fix for cell in case.shown if (fix := answers.fixed(failure, cell))]
    tested, whose, fates = _remedies(failure, case, today, versions)
    return Observed(
        today=len(today),
        of=len(case.among),
        stacks=len(showed & dates),
        of_stacks=len(dates),
        last=max(showed & dates, default=""),
        pinned=tuple(sorted(showed & {*requests.named()} - {TODAY})),
        outcomes=tuple(sorted(outcome_text(*each) for each in seen)),
        remedies=tuple(fates),
        measured=tested,
        whose=whose,
        upgrade=tuple(dict.fromkeys(fix.or_newer for fix in fixes)),
        commands=_commands(failure, case, today),
    )


def _remedies(
    failure: Failure, case: Case, today: Collection[Cell], versions: Mapping[str, Range]
) -> tuple[str, str, list[Fate]]:
    """The cells that tested remedies, in words, whose they are, and what became of the remedies."""
    showing = [cell for cell, did in measured.outcomes(failure).items() if history.shows(failure, cell, did)]
    places = {measured.place(cell) for cell in case.shown}
    twins = {replace(cell, precision="fp32") for cell in today}
    tested = [cell for cell in showing if cell in twins]
    cells, whose = "these cells today", ""
    if not any(fate.word == "verified" for fate in remedies.fates_of(failure, tested)):
        plain = {replace(cell, strategy=cell.strategy.partition("-")[0]) for cell in twins} - twins
        if others := [cell for cell in showing if cell in plain]:
            under = " and ".join(sorted({cell.strategy for cell in others}))
            tested, cells, whose = others, f"these cells under {under} today", f" under {under}"
    if not tested:
        tested = [cell for cell in showing if cell.variant == "broken" and measured.place(cell) in places]
        cells, whose = "the bare mechanism today", " of the bare mechanism"
    if not tested:
        tested = [*case.shown]
        cells, whose = f"these cells on {measured.shown_on(failure)}", ""
    fates = remedies.fates_of(failure, tested)
    pinned = {name: str(asked.pinned) for name, asked in versions.items() if asked.pinned}
    decisive, ruled = answers.outcomes_with(failure, pinned)
    ours = remedies.fates_of(failure, tested, ruled) if decisive else []
    if ours and {(fate.key, fate.word) for fate in ours} != {(fate.key, fate.word) for fate in fates}:
        run = [name for name in sorted(decisive) if Version(decisive[name]) >= measured.oldest(name)]
        with_releases = ", ".join(f"{name} {decisive[name]}" for name in run or sorted(decisive))
        by = "with" if run else "by the rules for"
        return f"these cells {by} {with_releases}", f" {by} {with_releases}", ours
    return cells, whose, fates


def _commands(failure: Failure, case: Case, today: Collection[Cell]) -> tuple[str, ...]:
    """The commands that repeat one cell of a case, on the last stack that showed it, and the failure as reported."""
    commands = [f"faultline reproduce {failure.name}"] if failure.reported else []
    fp32_first = sorted(case.shown, key=lambda cell: cell.precision != "fp32")
    for cell in fp32_first:
        if cell in today:
            return words.command(cell.id), *commands
    for cell in fp32_first:
        if showed := [
            sample.stack for sample in history.observations_of(failure, cell) if sample.shows and sample.stack
        ]:
            known = cell if showed[-1] in requests.named() else replace(cell, precision="fp32")
            return words.command(known.id, showed[-1]), *commands
    return tuple(commands)
