"""What a model keeps is held against one process and between ranks: faults of it are found, and healthy models pass."""

import pytest

from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.check import cell as checking
from faultline.check import target
from faultline.ranks.job import Job
from faultline.runs import oracle
from faultline.runs.runner import References

pytestmark = pytest.mark.slow

FILE = ROOT / "tests" / "support" / "stateful.py"
ENGINES = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
ALONE = ("zero2", "zero3", "fsdp1-full", "fsdp2")  # each rank keeps buffers of its own


@pytest.fixture(scope="module")
def run(shared_server, tmp_path_factory):
    """The judgement of a model of stateful.py under a strategy, with a fault of that file."""
    references = References(tmp_path_factory.mktemp("references"))

    def run(model, strategy, fault="", mode="off", world=2):
        cell = Cell("check", model, strategy, mode, "fp32", world)
        asked = target.parse(f"{FILE}:{model}", "").for_ranks(world)
        reference = references.file(shared_server, cell, asked)
        assert not reference.problem, reference.problem
        inject = f"{FILE}:{fault}" if fault else ""
        ended = shared_server.run(Job(cell.id, world, reference=str(reference.file), target=asked, inject=inject))
        return oracle.judge(cell, checking.CHECKED, ended)

    return run


@pytest.mark.parametrize("strategy", ENGINES)
@pytest.mark.parametrize("model", ["counter", "average", "spectral", "group_norm"])
def test_what_moves_alike_on_every_rank_trains(run, model, strategy):
    """Breaks when the reference moves a model's state once for each rank, or when a cache counts as a difference."""
    judged = run(model, strategy)
    assert judged.outcome == "trains", judged.detail


@pytest.mark.parametrize("model", ["batch_norm", "statistic", "two_passes"])
def test_what_an_engine_broadcasts_trains(run, model):
    """Breaks when DDP's other ranks are held against rank 0, whose buffers they get with the next forward pass; or
    against what their own rows left, of which a broadcast between two passes left nothing."""
    judged = run(model, "ddp")
    assert judged.outcome == "trains", judged.detail


@pytest.mark.parametrize("strategy", ALONE)
@pytest.mark.parametrize(("model", "name"), [("batch_norm", "running_mean"), ("statistic", "mean")])
def test_buffers_that_no_engine_synchronises_are_named(run, model, name, strategy):
    """Breaks when ranks whose running statistics differ are called right; a checkpoint has those of one."""
    judged = run(model, strategy)
    assert (judged.outcome, judged.signature) == ("diverges", "buffers-apart"), judged.detail
    assert f"between.{name}" in judged.finding.apart
    assert "between.constant" not in judged.finding.apart


def test_a_frozen_average_trains_where_parameters_are_whole(run):
    """Breaks when the reference moves a frozen parameter once for each rank."""
    assert run("frozen_average", "ddp").outcome == run("frozen_average", "zero2").outcome == "trains"


@pytest.mark.parametrize(
    ("model", "strategy", "fault", "signature"),
    [
        ("counter", "zero2", "ONE_RANK_COUNTS_ON", "buffers-apart"),
        ("counter", "fsdp2", "ONE_RANK_COUNTS_ON", "buffers-apart"),
        ("average", "zero3", "LAST_BIT", "buffers-apart"),
        ("statistic", "ddp", "NOT_BROADCAST", "buffers-apart"),
        ("batch_norm", "ddp", "TWICE", "buffers-differ"),
        ("batch_norm", "ddp", "FORWARD_AGAIN", "buffers-differ"),
        ("two_passes", "ddp", "TWICE", "buffers-differ"),
        ("two_passes", "ddp", "NOT_BROADCAST", "buffers-apart"),
        ("frozen_average", "ddp", "FROZEN_MOVES", "differs"),
        ("frozen_average", "zero2", "FROZEN_MOVES", "differs"),
    ],
)
def test_a_fault_of_what_is_kept_is_found(run, model, strategy, fault, signature):
    """Breaks when a buffer or a frozen parameter is left out of what is compared, on any rank."""
    judged = run(model, strategy, fault)
    assert (judged.outcome, judged.signature) == ("diverges", signature), judged.detail


def test_what_ddp_broadcasts_mends_another_ranks_buffer(run):
    """The near miss: a rank whose buffer is overwritten before anything is computed with it does nothing wrong."""
    assert run("average", "ddp", "LAST_BIT").outcome == "trains"
