"""A cell does the same under torchrun as on ranks forked from the server."""

import json
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.ranks.job import Job
from faultline.strategies import Setup
from faultline.trainers import config_file

pytestmark = pytest.mark.slow

TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def a_job(server, references, cell):
    reference = references.file(server, cell)
    assert not reference.problem
    return Job(cell.id, 2, reference=str(reference.file))


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
    forked = shared_server.run(job)
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
