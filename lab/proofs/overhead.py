"""What Ray costs on one machine: the same cells on its workers and on a cluster's slots, in turn."""

import random
import time
from collections.abc import Mapping, Sequence

from faultline.base import machine
from faultline.base.packages import TODAY
from faultline.catalogue.loading import failures
from faultline.cells import selection
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.fleet.rays import Rays
from faultline.runs import engines, measurement
from faultline.runs.driver import Batch
from faultline.runs.results import Result
from faultline.stacks import environments
from lab.proofs import soak

TURNS = 4  # parts that both run, each of which begins with new rank servers


def measured(cells: int) -> str:
    """Run so many cells of the default matrix, drawn at random, both ways; gives what a person reads of it."""
    matrix, choose = selection.select(failures(), Selection()), random.Random(0)
    drawn = choose.sample(matrix, min(cells, len(matrix)))
    with soak.fires(choose) as fire:
        seconds, wrong = in_turn(drawn, Rays(fire.address))
    here, fleet = seconds[True], seconds[False]
    return (
        f"{len(drawn):,} cells took {fleet:.0f} s on {machine.cores()} slots of Ray, and {here:.0f} s on as many"
        f" workers of this machine, {TURNS} parts in turn: {fleet / here:.2f} times as long; {wrong} not as expected."
    )


def in_turn(cells: Sequence[Cell], fleet: Rays) -> tuple[Mapping[bool, float], int]:
    """Seconds that both engines took, by whether it is `here`, and how many results were not as expected."""
    seconds, entries, environment = {True: 0.0, False: 0.0}, list[Result](), environments.chosen(TODAY, "")
    for number in range(TURNS):
        part = cells[number::TURNS]
        for engine in (engines.LOCAL, fleet) if number % 2 else (fleet, engines.LOCAL):
            begun = time.monotonic()
            measurement.run_batches([Batch(part, environment, done=entries.append)], machine.cores(), engine)
            seconds[engine.here] += time.monotonic() - begun
    return seconds, sum(entry.verdict != "expected" for entry in entries)
