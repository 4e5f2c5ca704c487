"""Cells on real Ray nodes: each has one result, the same as here, whatever dies on the way."""

import json
import re
import subprocess
import sys
import threading
from collections import Counter

import psutil
import pytest
from ray import cloudpickle

from faultline.base.errors import NeverReady
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, select
from faultline.fleet import cluster as fleet_cluster
from faultline.fleet.rays import Rays
from faultline.runs import measurement
from faultline.runs.driver import Batch
from faultline.runs.runner import run_cell
from faultline.stacks.environments import OF_STACK, Environment
from tests.support import light
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["run"]))

CELLS = [
    cell
    for cell in select(failures(), Selection.parse(strategy="ddp", precision="fp32", checkpointing="off", world="2"))
    if not failures()[cell.failure].variant(cell.variant).trainer and cell.life == "straight"
][:60]
ON_NODE = re.compile(r"(?<=rank \d) on \S+ \(\w+\)|^rank 0 on \S+ \(\w+\): (?=ValueError)")
DEEDS = (*("last_waits_first_fails", "dies_but_its_fork_lives", "trains") * 5, "waits")


def deed(cell):
    """What the ranks of a cell do: always the same."""
    return DEEDS[sum(cell.id.encode()) % len(DEEDS)]


def run(server, references, cell):
    return run_cell(server, references, cell, deed(cell))


def killing(server, references, cell):
    """As `run`, but some ranks are killed at first."""
    name = deed(cell)
    return run_cell(server, references, cell, "killed_at_first" if name == DEEDS[0] else name)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    return Environment(light.command(tmp_path_factory.mktemp("light"), OF_STACK), "")


@pytest.fixture(scope="module")
def here(stack):
    """What the cells do on this machine's workers: a bit of everything."""
    assert {deed(cell) for cell in CELLS} == {*DEEDS}
    seen = []
    measurement.run_batches([Batch(CELLS, stack, run=run)], 2, on_result=lambda _, entry: seen.append(entry))
    return {entry.cell: (entry.did, entry.detail) for entry in seen}


class Running:
    """The cells on a cluster, in a thread; `after` a number of results, the test does something."""

    def __init__(self, head, stack, workers=0, nodes=1, how=run):
        self.results, self.error = [], None
        batch = Batch(CELLS, stack, run=how)
        self.thread = threading.Thread(target=self.go, args=(batch, workers, Rays(head.address, nodes)))
        self.thread.start()

    def go(self, batch, workers, rays):
        try:
            measurement.run_batches([batch], workers, rays, lambda _, entry: self.results.append(entry))
        except BaseException as error:  # noqa: BLE001 - raised in the test
            self.error = error

    def after(self, number):
        wait_until(lambda: len(self.results) >= number or self.error, 60)

    def ends_as(self, here):
        self.thread.join(240)
        assert not self.thread.is_alive(), f"{len(self.results)} of {len(CELLS)} cells were answered"
        if self.error:
            raise self.error
        assert Counter(entry.cell for entry in self.results) == Counter(CELLS), "a cell is lost or doubled"
        for entry in self.results:
            did, detail = here[entry.cell]
            assert entry.did == did and ON_NODE.sub("", entry.detail) == detail

    def is_refused(self):
        self.thread.join(120)
        assert isinstance(self.error, NeverReady) and "no node can run these cells" in str(self.error)


def descendants(word):
    """The processes that this one has started, or Ray for it, in whose command a word is."""
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if any(word in part for part in process.info["cmdline"] or ())]


def test_cells_do_on_nodes_what_they_do_here(head, nodes, stack, here):
    """Breaks when a result changes on its way, or a reference isn't where a cell needs it."""
    for _ in range(2):
        nodes()
    Running(head, stack).ends_as(here)


def test_a_killed_node_loses_and_doubles_nothing(head, nodes, stack, here):
    """Breaks when the cells of a node, or of a slot, that dies are missing, come twice, or are blamed for its death."""
    gone, *_ = (nodes() for _ in range(3))
    running = Running(head, stack)
    running.after(10)
    wait_until(lambda: len(descendants("ray::OnRay")) == 3, 60)
    head.remove_node(gone, allow_graceful=False)
    wait_until(lambda: len(descendants("ray::OnRay")) == 2, 30)
    descendants("ray::OnRay")[0].kill()
    running.ends_as(here)


def test_a_killed_rank_is_tried_again(head, nodes, stack, here):
    """Breaks when a cell is blamed for a rank that the kernel killed for want of memory, perhaps another's."""
    nodes()
    Running(head, stack, how=killing).ends_as(here)


@pytest.mark.nightly
def test_a_node_without_room_gets_no_cell(head, nodes, stack, here):
    """Breaks when a slot waits for ever on a node without processors or memory."""
    nodes(num_cpus=0)
    nodes(num_cpus=4, memory=1 << 28)
    nodes()
    rays = Rays(head.address)
    assert rays.workers(CELLS, 0) == (1, "") and rays.workers(CELLS, 3)[1].startswith("1 worker at first, not 3:")
    running = Running(head, stack)
    running.after(5)
    assert len(descendants("ray::OnRay")) == 1, "a slot waits on a node that has no room for it"
    running.ends_as(here)


def test_cells_on_two_nodes_do_what_they_do_here(head, nodes, stack, here):
    """Breaks when ranks that are sent to two nodes run on one, or the node of a first cause isn't named."""
    for _ in range(4):
        nodes()
    running = Running(head, stack, nodes=2)
    running.ends_as(here)
    assert all(ON_NODE.search(entry.detail) for entry in running.results if entry.detail)
    assert ray_state(head) == []


@pytest.mark.nightly
def test_a_cell_whose_second_node_dies_goes_to_others(head, nodes, stack, here):
    """Breaks when a cell on two nodes is blamed for the death of one, is lost, or keeps the other one's room."""
    nodes()
    second = nodes()
    running = Running(head, stack, nodes=2)
    running.after(10)
    head.remove_node(second, allow_graceful=False)
    nodes()
    running.ends_as(here)
    assert ray_state(head) == []


def ray_state(head):
    """The placement groups that are still there."""
    table = fleet_cluster.connect(head.address).util.placement_group_table()
    return [group for group in table.values() if group["state"] != "REMOVED"]


PROGRAM = """
import sys
from pathlib import Path
from faultline.base import paths
paths.RESULTS = Path(sys.argv[1])
from faultline.cli import app
sys.exit(app.main(sys.argv[2:]))
"""


@pytest.mark.nightly
def test_a_killed_driver_goes_on(head, nodes, tmp_path):
    """Breaks when the results of a run whose driver was killed are lost or doubled, or its actors outlive it."""
    nodes()
    options = {"failure": "zero3_dummy_loss", "strategy": "single,ddp,zero3", "precision": "fp32"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "run", "--fleet", "ray", "--address", head.address]
    command += ["--fresh", *(word for name, value in options.items() for word in (f"--{name}", value))]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        wait_until(lambda: len(lines(tmp_path)) > 2 or driver.poll() is not None, 120)
        assert driver.poll() is None, "it ended before it could be killed"
        driver.kill()
    before = lines(tmp_path)
    done = subprocess.run([*command, "--resume"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    ids = [json.loads(line)["id"] for line in lines(tmp_path)]
    assert lines(tmp_path)[: len(before)] == before and len(ids) == len({*ids})
    assert {*ids} == {cell.id for cell in select(failures(), Selection.parse(**options))}


def lines(folder):
    return [line for file in folder.glob("2*/cells.jsonl") for line in file.read_text().splitlines()]


CELL = "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu"
ASKED = {
    "explore": (["--specs=4", "--strategy=ddp", "--seed=3"], "programs drawn: 4"),
    "is-safe": (["deepspeed==0.19.7", f"--cell={CELL}"], "SAFE"),
    "bisect": (["--package=deepspeed", "--from=0.19.6", "--to=0.19.7", "--others=fixed", f"--cell={CELL}"], "0.19.6"),
    "timeline": (["--since=2026-10-01", "--until=2026-11-01", f"--cell={CELL}"], "26-11"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("command", ASKED)
def test_other_commands_run_on_it_too(head, nodes, tmp_path, command):
    """Breaks when a command takes --fleet, and can't run its cells there, such as those of another stack."""
    nodes()
    words, says = ASKED[command]
    asked = [sys.executable, "-c", PROGRAM, str(tmp_path), command, *words, "--fleet=ray", f"--address={head.address}"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and says in done.stdout, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.nightly
def test_a_node_that_cannot_have_the_stack_is_left_out(head, nodes, stack, here, tmp_path):
    """Breaks when one node without the stack ends a run, or loses its cells; or when no node has it, and it waits."""
    program = tmp_path / "stack"
    program.write_text(f'#!/bin/sh\n[ "$LACKS_IT" ] && exit 1\nexec {stack.python}\n')
    program.chmod(0o755)
    nodes(env_vars={"LACKS_IT": "1"})
    Running(head, Environment(str(program), "")).is_refused()
    nodes()
    Running(head, Environment(str(program), "")).ends_as(here)
