"""GPUs of a real Ray node, whose NVML is a stand-in: which of them the ranks of cells see, and when."""

import itertools
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest
from ray import cloudpickle

from faultline.cells.cell import Cell
from faultline.fleet.rays import Rays
from faultline.ranks.job import Job
from faultline.runs import gpus, measurement, nodes
from faultline.runs.driver import Batch
from faultline.stacks.environments import OF_STACK, Environment
from tests.support import entries, light
from tests.support.nvml import Nvml

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_is_left")]

for module in (__name__, "tests.support.entries", "tests.support.nvml"):
    cloudpickle.register_pickle_by_value(__import__(module, fromlist=["run"]))

TWO = Cell("grpo_lora_no_grad", "broken", "ddp", device="cuda")
FOUR = replace(TWO, world_size=4)
CELLS = [replace(cell, variant=f"v{number}") for number, cell in enumerate([TWO, TWO, FOUR, TWO, FOUR, TWO, TWO, FOUR])]


def run(server, references, cell):
    began = time.monotonic()
    ended = nodes.run(server, Job(cell, cell.world_size, inject="environment"))
    visible = sorted({rank.report.evidence["found"]["CUDA_VISIBLE_DEVICES"] for rank in ended.ranks})
    return entries.entry(cell, evidence={"began": began, "ended": time.monotonic(), "visible": visible})


class OnStandIn:
    """`run`, on a node whose NVML has so many GPUs."""

    def __init__(self, count):
        self.count = count

    def __reduce__(self):
        return on_stand_in, (self.count,)

    def __call__(self, *given):
        raise AssertionError("it runs on nodes alone")


def on_stand_in(count):
    """In the process of an actor."""
    platformdirs.user_cache_path = lambda name: Path(tempfile.gettempdir())
    gpus.seen = lambda visible: gpus.read(Nvml(count), visible)
    return run


@pytest.mark.parametrize("count", [4, 2])
def test_no_two_cells_at_a_time_see_one_gpu_and_four_wait_for_four(head, nodes, tmp_path, count):
    """Breaks when slots share a GPU, ranks see all of a node's, or cells that want more than a node has never run."""
    nodes(num_cpus=4, num_gpus=count)
    stack, results = Environment(light.command(tmp_path, OF_STACK), ""), []
    batch = Batch(CELLS, stack, run=OnStandIn(count))
    measurement.run_batches([batch], 0, Rays(head.address), lambda _, entry: results.append(entry))
    assert {each.cell for each in results} == {*CELLS} and len(results) == len(CELLS)
    seen = []
    for each in results:
        [visible] = each.evidence["visible"]
        seen.append((each.evidence["began"], each.evidence["ended"], {*visible.split(",")}))
        assert len(seen[-1][2]) == min(count, each.cell.world_size) and seen[-1][2] <= {"0", "1", "2", "3"}
    for (one, end, has), (other, other_end, others) in itertools.combinations(seen, 2):
        assert end < other or other_end < one or not has & others
