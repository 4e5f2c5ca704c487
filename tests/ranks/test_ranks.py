"""Real cells with a fault in them: the outcome names what was done and to whom, and nothing of the cell is left."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace

import psutil
import pytest

from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.ranks.job import Job
from faultline.runs import nodes, runner
from faultline.strategies import Setup
from faultline.trainers import config_file
from tests.support.light import have_ended, survivors
from tests.support.program import python

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


COMPILED = Cell.parse("double_backward_through_shards/approximated/ddp/off/fp32/w2/aot_eager/cpu")


@pytest.mark.parametrize(("fault", "outcome"), [("HANGS_UP", "crashes"), ("SLEEPS", "hangs")])
def test_a_compiled_cell_that_dies_in_its_second_step_had_compiled(shared_server, references, fault, outcome):
    """Breaks when a compiled cell that hangs or dies is invalid, as its rank showed its graphs at the end alone."""
    entry = runner.run_cell(shared_server, references, COMPILED, f"{FAULTS}:{fault}")
    assert entry.outcome == outcome, entry.detail


def test_a_rank_that_never_comes_is_a_hang(run):
    entry = run("SLEEPS")
    assert (entry.outcome, entry.signature) == ("hangs", "no-progress")
    assert "slept" in entry.detail, "the deadline found what should have been seen at once"
    assert "rank 0: all_reduce" in entry.detail and "rank 1: sleep" in entry.detail, "not where ranks wait"
    assert all("injections.py" in rank.stack for rank in entry.ranks), "no stack in the result"


def test_a_cell_whose_server_is_killed_runs_again(run, shared_server):
    """The first server's ranks die with it: `run` looks for them, by the folder that both servers share."""
    first = shared_server._process.pid
    entry = run("KILLS_THE_SERVER")
    assert entry.outcome == "trains", "the death of the server counts as the cell's"
    assert shared_server._process.pid != first
    assert have_ended([int((shared_server.folder / "killed").read_text())]), "a rank outlives its server"


# Cells of eight ranks, with a global batch of eight rows.

OF_EIGHT = (
    "grpo_lora_no_grad/broken/zero3/reentrant/fp32/w8/cpu",
    "grpo_lora_no_grad/sft-broken/fsdp2/reentrant/fp32/w8/cpu",
    "zero3_dummy_loss/broken/ddp/off/fp32/w8/cpu",
)


def test_eight_ranks_are_in_the_matrix_of_eight_rows_alone():
    """Breaks when the default matrix grows by cells that a machine of two cores can't run; or when somebody with eight
    GPUs reads that it can't be, and not how it can."""
    refused = python("-m", "faultline", "list", "--world", "8")
    assert refused.returncode == 2 and "with FAULTLINE_ROWS=8 also over 8" in refused.stderr
    listed = python("-m", "faultline", "list", "--ids", "--failure", "grpo_lora_no_grad", FAULTLINE_ROWS="8")
    assert "/w8/" in listed.stdout


@pytest.mark.nightly
def test_eight_ranks_do_what_four_do(tmp_path):
    """Breaks when a global batch of eight rows isn't shared by eight ranks, or is held against one of four."""
    done = python(
        "-m", "faultline", "run", "--cell", ",".join(OF_EIGHT), "--results", str(tmp_path / "run"), FAULTLINE_ROWS="8"
    )
    assert done.returncode == 0, done.stdout
    assert "3 cells: trains 2, raises 1; 0 not as expected" in done.stdout


# A cell does the same under torchrun as on ranks forked from the server.

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def a_job(server, references, cell):
    reference = references.file(server, cell)
    assert not reference.problem
    return Job(cell, 2, reference=str(reference.file))


def launch(launcher, job, folder):
    """Both ranks' reports of a job that somebody else's launcher started."""
    file = folder / "job.json"
    file.write_text(json.dumps(asdict(replace(job, folder=str(folder)))))
    module = ["faultline.ranks.launched"] if launcher[-1] == "--module" else ["-m", "faultline.ranks.launched"]
    words = [sys.executable, "-m", *launcher, *module, str(file)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads((folder / f"report{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"])
def test_torchrun_ends_with_the_same_weights(shared_server, references, strategy, tmp_path):
    """Breaks when forking from a server that has imported everything changes what a rank computes."""
    cell = Cell("zero_double_reduction", "one_call", strategy)
    job = a_job(shared_server, references, cell)
    forked = nodes.run(shared_server, job)
    for launched, end in zip(launch(TORCHRUN, job, tmp_path), forked.ranks, strict=True):
        assert launched["error"] is None
        assert tuple(launched["digests"]) == end.report.digests


@pytest.mark.nightly
def test_only_accelerate_launch_reads_accelerates_config_file(shared_server, references, tmp_path):
    """Breaks when the remedy "use accelerate launch, not torchrun" is no longer what the cells say it is."""
    setup = Setup(0, 2, "off", "fp32", None, str(tmp_path), {})
    file = config_file(str(ROOT / "ds_configs" / "zero2.json"), setup)
    job = a_job(shared_server, references, Cell("ddp_unused_vision_tower", "sft-broken", "ddp"))
    accelerate = ["accelerate.commands.launch", "--config_file", file, "--main_process_port", "0", "--module"]
    for report in launch(accelerate, job, tmp_path):
        assert report["evidence"]["wrapper"] == "DeepSpeedEngine" and report["error"] is None
    for report in launch(TORCHRUN, job, tmp_path):
        assert report["evidence"]["wrapper"] == "DistributedDataParallel"
        assert "Expected to have finished reduction" in report["error"]["message"]
