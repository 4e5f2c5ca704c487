"""The verb: runs the nearest cells of what a report may be about on its reporter's versions, then what helps."""

import datetime
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, UsageError
from faultline.base.packages import NEEDED, TODAY
from faultline.catalogue import REMEDIES, Failure
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells import claims
from faultline.cells.cell import Cell, default_world
from faultline.diagnose.prose import terms
from faultline.observations import history, measured, symptoms
from faultline.reproduction import facts, view
from faultline.reproduction.facts import ReportFacts
from faultline.reproduction.view import Tried
from faultline.runs import campaigns, results
from faultline.runs.campaigns import Campaign, Measured
from faultline.stacks import index, requests
from faultline.stacks.requests import EARLIEST, UNDATED, Stack

NEAREST = 2  # cells of each failure
REPORTED = "reported"
LATER = datetime.timedelta(days=7)  # after the newest release that a report names: what else was installed is older


@dataclass(frozen=True)
class ReproduceRequest:
    """Files of a report; minutes after which nothing new is begun; a stack in place of the report's."""

    report: Sequence[str]
    minutes: int = 15
    stack: str = ""
    workers: int = 0
    resume: bool = False


def run(request: ReproduceRequest) -> int:
    """Print what became of a report: exit code 0 if a failure of the catalogue shows on its versions, 1 if none does, 3
    if nothing could be run there."""
    known = facts.read(request.report)
    console, begin = Console(), time.monotonic()
    view.show_facts(console, known)
    failures = candidates(known)
    view.show_candidates(console, known, failures)
    if not failures:
        return EXIT_UNEXPECTED
    stack, guesses = their_stack(request, known.versions)
    view.show_stack(console, stack, guesses)
    cells = {failure.name: nearest(failure, known) for failure in failures}
    every = [cell for each in cells.values() for cell in each]
    asked = {"report": sorted(request.report), "stack": stack.name, "cells": [cell.id for cell in every]}
    campaign = campaigns.begin("reproduce", asked, request.workers, request.resume)
    campaigns.announce(campaign, every, 1)
    there = campaigns.measure(campaign, REPORTED, stack, every)
    if there.unusable:
        view.show_unusable(console, stack, there)
        return EXIT_UNDECIDED
    tried = [_judged(failure, cells[failure.name], there, known) for failure in failures]
    for number, each in enumerate(tried):
        if each.as_reported and time.monotonic() - begin < request.minutes * 60:
            tried[number] = with_remedies(campaign, stack, each)
    shown = [each for each in tried if each.as_reported]
    view.show(console, [*shown, *(each for each in tried if not each.as_reported)], there)
    print(f"results: {campaign.folder.shown}")
    return EXIT_AS_EXPECTED if shown else EXIT_UNEXPECTED


def candidates(known: ReportFacts) -> list[Failure]:
    """What the report may be about, the likeliest first: by an error, by its files, or by its words."""
    diagnosis = known.diagnosis.diagnosis
    if diagnosis.match:
        return [diagnosis.match.failure]
    names = {match.failure.name: match.failure for match in diagnosis.several}
    names |= {near.failure.name: near.failure for near in diagnosis.by_words}
    audited = known.project.findings if known.project else ()
    if not names:
        names |= {finding.failure.name: finding.failure for finding in audited if finding.applies}
    return [*names.values()][:3]


def nearest(failure: Failure, known: ReportFacts) -> list[Cell]:
    """The cells of a failure that are nearest to what is known of the run, in which it showed on some stack."""
    stack = history.nearest_stack(failure, dict(known.versions))
    outcomes = {**measured.outcomes(failure), **(stack[1] if stack else {})}
    for other in measured.by_stack(failure.name).values():
        trains = [cell for cell in other if cell not in outcomes or outcomes[cell].outcome == Outcome.TRAINS]
        outcomes |= {cell: other[cell] for cell in trains}
    shown = [cell for cell in claims.showing(failure, outcomes) if cell.device == "cpu"]

    def apart(cell: Cell) -> tuple[int, bool, bool]:
        trainer = failure.variant(cell.variant).trainer or "scenario"
        values = {"strategy": cell.strategy, "checkpointing": cell.checkpointing, "precision": cell.precision}
        off = sum(axis in known.left and value not in known.left[axis] for axis, value in values.items())
        other = "trainer" in known.left and trainer not in known.left["trainer"] and trainer != "scenario"
        return 2 * off + other, cell.world_size != default_world(cell), cell != measured.usual(cell)

    return sorted(dict.fromkeys(shown), key=apart)[:NEAREST]


def their_stack(request: ReproduceRequest, versions: Mapping[str, str]) -> tuple[Stack, list[str]]:
    """The stack of a report, and what had to be guessed of it."""
    if request.stack:
        return requests.parse(request.stack), []
    pins = {name: version for name, version in versions.items() if name in NEEDED and name not in UNDATED}
    if not pins:
        return requests.read(TODAY), ["the report names no version: this runs on today's"]
    days = {}
    for name, version in pins.items():
        dates = [each.date for each in index.releases(name) if each.version == version and each.date]
        if not dates:
            raise UsageError(f"the package index has no {name}=={version} for this Python: give --stack")
        days[name] = datetime.date.fromisoformat(dates[0])
    usable = {name: version for name, version in pins.items() if days[name] >= EARLIEST}
    guesses = [
        f"{name} {pins[name]} is of {day}: the oldest stack that can be run is of {EARLIEST}"
        for name, day in days.items()
        if name not in usable
    ]
    asof = min(max(EARLIEST, *days.values()) + LATER, datetime.date.today())
    if others := sorted({*NEEDED} - {*usable}):
        guesses.append(f"{', '.join(others)} as of {asof}, as the report doesn't name them")
    given = {name: f"{name}=={version}" for name, version in usable.items()}
    name = " ".join(given.values()) or str(asof)
    return Stack(name, requests.ordered(given), asof.isoformat()), guesses


def _judged(failure: Failure, cells: Sequence[Cell], there: Measured, known: ReportFacts) -> Tried:
    """The cell of a failure that shows most of the report."""
    match = known.diagnosis.diagnosis.match
    wanted = match.signature if match and match.failure == failure else ""
    wanted = wanted or next((m.signature for m in known.diagnosis.diagnosis.several if m.failure == failure), "")
    done = {entry.cell: entry for entry in there.results}
    worded = terms(known.text)
    best = Tried(failure, cells[0])
    for cell in cells:
        if not (entry := done.get(cell)):
            continue
        word = ""
        if results.shows(failure, entry):
            seen = [each for each in symptoms.seen_of(cell, entry.did) if symptoms.SYMPTOMS[each].terms & worded]
            word = "the same error" if entry.signature == wanted else "; ".join(seen)
        if not best.did or (word and not best.as_reported):
            best = Tried(failure, cell, entry.did, word)
    return best


def with_remedies(campaign: Campaign, stack: Stack, tried: Tried) -> Tried:
    """What helps against a failure that shows: each remedy on the reporter's versions and on today's."""
    failure, cell = tried.failure, tried.cell
    helping = [
        (claim, claims.swapped(failure, claim.swap, cell))
        for claim in failure.claims.values()
        if claim.kind in REMEDIES and "stack" not in claim.swap and claims.is_about(failure, claim, cell)
    ]
    cells = [*dict.fromkeys([cell, *(other for _, other in helping)])]
    there = campaigns.measure(campaign, REPORTED, stack, cells)
    now = campaigns.measure(campaign, TODAY, requests.read(TODAY), cells)
    did, today = ({entry.cell: entry.did for entry in each.results} for each in (there, now))

    def word(done: Mapping[Cell, Did], other: Cell) -> str:
        if other not in done or done[other].outcome in claims.NOT_RUN:
            return "not run"
        return "helps" if done[other].outcome == Outcome.TRAINS else str(done[other])

    helps = {claim.text: (word(did, other), word(today, other)) for claim, other in helping}
    return replace(tried, helps=helps, today=today.get(cell))
