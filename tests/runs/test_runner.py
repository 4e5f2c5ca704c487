"""The workers of this machine: references are made once, an interrupted run loses no result, warm servers stay."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from faultline.base.errors import DIED, ServerDied
from faultline.cells.cell import Cell
from faultline.runs import measurement, nodes
from faultline.runs.driver import Batch
from faultline.runs.engines import LOCAL
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.runner import TRIES, References
from faultline.stacks.environments import Environment
from tests.support import entries, reports

CELL = Cell("grpo_lora_no_grad", "broken", "ddp")


class Server:
    """Answers as a rank server would: ends in turn, and a file where an end is None."""

    def __init__(self, *ends):
        self.ends = [*ends]

    def run(self, job):
        end = self.ends.pop(0)
        if end is None:
            Path(job.reference).write_text("reference")
        return end or Ended([reports.end()])


KILLED, FAILED = Ended([RankEnd(exit=-9)]), Ended([reports.end(error=reports.error("ValueError", "no such layer"))])


@pytest.mark.parametrize(("ends", "problem"), [([KILLED, None], None), ([FAILED], "error"), ([KILLED] * TRIES, DIED)])
def test_a_reference_is_made_once_for_all_workers(tmp_path, monkeypatch, ends, problem):
    """Breaks when one killed rank makes later cells invalid, or a reference is made anew, or tried for ever."""
    monkeypatch.setattr(nodes, "run", Server.run)
    server, references = Server(*ends), References(tmp_path)
    reference = references.file(server, CELL)
    assert (reference.problem and reference.problem.kind) == problem and reference.file.exists() == (not problem)
    assert not server.ends and (problem == DIED or references.file(server, CELL) == reference)


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

    def done(_, entry):
        if not written:
            assert third.wait(60)
            signal.raise_signal(signal.SIGINT)
        written.append(entry.cell)

    with pytest.raises(KeyboardInterrupt):
        measurement.run_batches([Batch(cells, run=run_cell)], 1, on_result=done)
    assert written == cells[:2] and begun == cells[:3]


def test_a_run_in_another_thread_leaves_signals_alone(interruptible):
    """Breaks when a program calls `faultline.check` in a thread: Python sets signals in the main one only."""
    written = []
    batch = Batch([CELL], run=lambda server, references, cell: entries.entry(cell))
    with ThreadPoolExecutor() as pool:
        pool.submit(measurement.run_batches, [batch], 1, on_result=lambda _, entry: written.append(entry.cell))
    assert written == [CELL]


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
        measurement.run_batches([Batch(cells, run=run_cell)], 2, on_result=lambda _, entry: written.append(entry.cell))
    assert written == cells[1:]


def served(engine, python="python"):
    """The rank server and the references that a run of one cell is given on an engine."""
    seen = []

    def run(server, references, cell):
        seen.append((server, references))
        return entries.entry(cell)

    measurement.run_batches([Batch([CELL], Environment(python, ""), run=run)], 1, engine)
    return seen[0]


def test_a_warm_pool_keeps_its_rank_servers_and_no_references():
    """Breaks when an exploration waits for its servers each round, has one of another stack, or leaves anything."""
    with LOCAL.warm() as pool:
        (first, references), (second, others) = served(pool), served(pool)
        assert first is second and first.folder.exists()
        assert not references.folder.exists() and not others.folder.exists()
        first.kill()
        second, _ = served(pool)
        other, _ = served(pool, "another-python")
        assert len({id(each) for each in (first, second, other)}) == 3
        assert not first.folder.exists() and not second.folder.exists()
    assert not other.folder.exists(), "they end with the pool"
    (first, _), (second, _) = served(LOCAL), served(LOCAL)
    assert first is not second and not first.folder.exists(), "a pool that isn't warm ends them"
