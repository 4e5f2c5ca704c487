"""A cell does the same under torchrun as on ranks forked from the server."""

import json
import subprocess
import sys

import pytest

from faultline import runner
from faultline.catalogue import ROOT
from faultline.matrix import Cell
from faultline.ranks import RankServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with RankServer(sys.executable) as ranks:
        ranks.start()
        yield ranks


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"])
def test_torchrun_ends_with_the_same_weights(server, strategy, tmp_path):
    """Breaks when forking from a server that has imported everything changes what a rank computes."""
    cell = Cell("zero_double_reduction", "one_call", strategy)
    references = runner.References(server.folder)
    reference, problem = references.file(server, cell)
    assert not problem
    job = {"cell": cell.id, "reference": str(reference)}
    forked = server.run(job, 2)
    file = tmp_path / "job.json"
    file.write_text(json.dumps({**job, "folder": str(tmp_path)}))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "faultline.launched", str(file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for rank, end in enumerate(forked.ranks):
        launched = json.loads((tmp_path / f"report{rank}.json").read_text())
        assert launched["error"] is None
        assert launched["digests"] == end.report["digests"]
