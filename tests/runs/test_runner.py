"""References: made once, again when their rank dies, never again when the scenario fails; and interrupted runs."""

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from faultline.base.errors import DIED, ServerDied
from faultline.cells.cell import Cell
from faultline.runs import engines
from faultline.runs.driver import Plan
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.runner import TRIES, References
from tests.support import entries, reports

CELL = Cell("grpo_lora_no_grad", "broken", "ddp")
KILLED = Ended([RankEnd(exit=-9)])
FAILED = Ended([reports.end(error=reports.error("ValueError", "no such layer"))])


class Server:
    """Answers as a rank server would: ends in turn, and a file where an end is None."""

    def __init__(self, *ends):
        self.ends = [*ends]

    def run(self, job):
        end = self.ends.pop(0)
        if end is None:
            Path(job.reference).write_text("reference")
        return end or Ended([reports.end()])


def test_a_reference_whose_rank_was_killed_is_made_again(tmp_path):
    """Breaks when one killed rank makes every later cell of its variant invalid."""
    server, references = Server(KILLED, None), References(tmp_path)
    reference = references.file(server, CELL)
    assert reference.file.exists() and not reference.problem
    assert references.file(server, CELL) == reference, "it is made once for all workers"


def test_a_scenario_that_fails_is_not_tried_again(tmp_path):
    """Breaks when every cell of a broken scenario pays for its reference anew."""
    server, references = Server(FAILED), References(tmp_path)
    for _ in range(2):
        assert references.file(server, CELL).problem.message == "no such layer"


def test_a_rank_that_always_dies_is_given_up(tmp_path):
    """Breaks when a reference that can't be made is tried for ever."""
    server = Server(*[KILLED] * TRIES)
    assert References(tmp_path).file(server, CELL).problem.kind == DIED
    assert not server.ends


def test_an_interruption_loses_no_result(interruptible):
    """Breaks when Ctrl-C drops the result in hand or those in the queue, or lets the cell that runs run on."""
    cells = [replace(CELL, world_size=size) for size in (1, 2, 4, 8)]
    begun, written = [], []
    third = threading.Event()

    def run_cell(server, references, cell):
        begun.append(cell)
        if cell == cells[2]:
            third.set()
            while not server.killed:
                time.sleep(0.01)
            raise ServerDied
        return entries.entry(cell)

    def done(entry):
        if not written:
            assert third.wait(60)
            signal.raise_signal(signal.SIGINT)
        written.append(entry.cell)

    with pytest.raises(KeyboardInterrupt):
        engines.run_all(cells, Plan(1, run=run_cell), done)
    assert written == cells[:2] and begun == cells[:3]


def test_a_run_in_another_thread_leaves_signals_alone(interruptible):
    """Breaks when a program calls `faultline.check` in a thread: Python sets signals in the main one only."""
    written = []
    plan = Plan(1, run=lambda server, references, cell: entries.entry(cell))
    thread = threading.Thread(target=engines.run_all, args=([CELL], plan, written.append))
    thread.start()
    thread.join()
    assert [entry.cell for entry in written] == [CELL]


def test_a_mistake_in_the_machinery_ends_the_run_with_what_is_measured():
    """Breaks when one worker's exception waits for the others' cells, or throws away what they have finished."""
    cells = [replace(CELL, variant=variant) for variant in ("broken", "explicit_use_reentrant")]
    written = []

    def run_cell(server, references, cell):
        if cell == cells[0]:
            raise ZeroDivisionError
        while not server.killed:
            time.sleep(0.01)
        return entries.entry(cell)

    with pytest.raises(ZeroDivisionError):
        engines.run_all(cells, Plan(2, run=run_cell), lambda entry: written.append(entry.cell))
    assert written == cells[1:]
