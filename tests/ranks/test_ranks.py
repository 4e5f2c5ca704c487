"""Real cells with a fault in them: the outcome names what was done and to whom, and nothing of the cell is left."""

import json
import os
import time

import psutil
import pytest

from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.runs import hangs, runner
from tests.support.light import have_ended, survivors
from tests.support.night import sampled

pytestmark = pytest.mark.slow

CELL = Cell.parse("grpo_lora_no_grad/check_graph/ddp/off/fp32/w2/cpu")
FAULTS = ROOT / "tests" / "support" / "injections.py"


@pytest.fixture
def run(shared_server, references):
    """Run the cell, once with the fault named; afterwards only the server and what is its own may be there."""
    references.file(shared_server, CELL)
    files, shared = everything(shared_server.folder), set(os.listdir("/dev/shm"))
    yield lambda fault: runner.run_cell(shared_server, references, CELL, f"{FAULTS}:{fault}")
    assert not survivors(shared_server), "a process of the cell is still there after it"
    assert not psutil.Process(shared_server._process.pid).net_connections(), "the server keeps a rank's connection"
    assert everything(shared_server.folder) <= files, "the cell left files behind"
    for _ in range(50):  # of other programs, which may come and go
        left = set(os.listdir("/dev/shm")) - shared
        if not left:
            break
        time.sleep(0.1)
    assert not left, "the cell left shared memory behind"


def everything(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} | {"killed"}


def test_a_healthy_cell_trains_on_a_server_that_is_safe_to_fork(run):
    entry = run("NOTHING")
    assert entry.outcome == "trains", "the cell that carries all faults of this file does not train without one"
    assert entry.evidence["at_fork"] == {"threads": 1, "cuda_initialised": False}, (
        "the server had threads or CUDA when it forked: ranks may hang or fail for that alone"
    )


def test_ranks_find_the_servers_settings(run):
    results = json.loads(run("SHOWS").detail.removeprefix("AssertionError: "))
    assert results["OMP_NUM_THREADS"] == "1" and results["torch_threads"] == 1, "ranks share the cores with themselves"
    assert results["shm"] is False, "DeepSpeed would compile its shared memory collectives inside a cell"
    assert results["TMPDIR"] == results["folder"], "what a rank writes to the temporary folder stays there for ever"


# One of each kind, as tests/runs has all of them on ranks without torch.
ENDS = {
    "FAILS": ("raises", "other", "ValueError: an injected fault"),
    "HANGS_UP": ("crashes", "silent-exit", "rank 1 was left with exit code 7 and no report"),
    "RANK_0_DIES": ("crashes", "SIGKILL", "rank 0 was killed by SIGKILL"),
}


@pytest.mark.parametrize("fault", ENDS)
def test_what_one_rank_did_is_the_cause(run, fault):
    """Breaks when the error or death of one rank hides behind what its peer says of it."""
    entry = run(fault)
    assert (entry.outcome, entry.signature, entry.detail) == ENDS[fault]
    assert fault != "FAILS" or [rank.error is None for rank in entry.ranks] == [True, False]


@pytest.mark.parametrize(
    ("fault", "seen", "place"),
    sampled([("SLEEPS", "slept", "sleep"), ("SPINS", "same place", "spin")], 2),
)
def test_a_rank_that_never_comes_is_a_hang(run, monkeypatch, fault, seen, place):
    if fault == "SPINS":
        monkeypatch.setattr(hangs, "STUCK", 8)
    entry = run(fault)
    assert (entry.outcome, entry.signature) == ("hangs", "no-progress")
    assert seen in entry.detail, "the deadline found what should have been seen at once"
    assert "rank 0: all_reduce" in entry.detail and f"rank 1: {place}" in entry.detail, "not where ranks wait"
    assert fault != "SLEEPS" or all("injections.py" in rank.stack for rank in entry.ranks), "no stack in the result"


def test_a_cell_whose_server_is_killed_runs_again(run, shared_server):
    """The first server's ranks die with it: `run` looks for them, by the folder that both servers share."""
    first = shared_server._process.pid
    entry = run("KILLS_THE_SERVER")
    assert entry.outcome == "trains", "the death of the server counts as the cell's"
    assert shared_server._process.pid != first
    assert have_ended([int((shared_server.folder / "killed").read_text())]), "a rank outlives its server"
