"""What a model keeps is held against one process and between ranks: faults of it are found, and healthy models pass."""

import pytest

from faultline.base.paths import ROOT
from tests.support.night import sampled

pytestmark = pytest.mark.slow

FILE = ROOT / "tests" / "support" / "stateful.py"
ENGINES = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
ALONE = ("zero2", "zero3", "fsdp1-full", "fsdp2")  # each rank keeps buffers of its own


@pytest.fixture
def kept(run):
    """The result of a model of stateful.py under a strategy, with a fault of that file."""

    def kept(model, strategy, fault=""):
        return run(f"stateful.py:{model}", strategy, inject=fault and f"{FILE}:{fault}")

    return kept


MOVED = [(model, name) for model in ("counter", "average", "spectral", "group_norm") for name in ENGINES]


@pytest.mark.parametrize(("model", "strategy"), sampled(MOVED, 3))
def test_what_moves_alike_on_every_rank_trains(kept, model, strategy):
    """Breaks when the reference moves a model's state once for each rank, or when a cache counts as a difference."""
    judged = kept(model, strategy)
    assert judged.outcome == "trains", judged.detail


@pytest.mark.parametrize("model", ["batch_norm", "statistic", "two_passes"])
def test_what_an_engine_broadcasts_trains(kept, model):
    """Breaks when DDP's other ranks are held against rank 0, whose buffers they get with the next forward pass; or
    against what their own rows left, of which a broadcast between two passes left nothing."""
    judged = kept(model, "ddp")
    assert judged.outcome == "trains", judged.detail


OWN = [(*each, name) for each in (("batch_norm", "running_mean"), ("statistic", "mean")) for name in ALONE]


@pytest.mark.parametrize(("model", "name", "strategy"), sampled(OWN, 3))
def test_buffers_that_no_engine_synchronises_are_named(kept, model, name, strategy):
    """Breaks when ranks whose running statistics differ are called right; a checkpoint has those of one."""
    judged = kept(model, strategy)
    assert (judged.outcome, judged.signature) == ("diverges", "buffers-apart"), judged.detail
    assert f"between.{name}" in judged.finding.apart
    assert "between.constant" not in judged.finding.apart


def test_a_frozen_average_trains_where_parameters_are_whole(kept):
    """Breaks when the reference moves a frozen parameter once for each rank."""
    assert kept("frozen_average", "ddp").outcome == kept("frozen_average", "zero2").outcome == "trains"


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
def test_a_fault_of_what_is_kept_is_found(kept, model, strategy, fault, signature):
    """Breaks when a buffer or a frozen parameter is left out of what is compared, on any rank."""
    judged = kept(model, strategy, fault)
    assert (judged.outcome, judged.signature) == ("diverges", signature), judged.detail


def test_what_ddp_broadcasts_mends_another_ranks_buffer(kept):
    """The near miss: a rank whose buffer is overwritten before anything is computed with it does nothing wrong."""
    assert kept("average", "ddp", "LAST_BIT").outcome == "trains"
