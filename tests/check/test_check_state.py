"""What a model keeps is held against one process and between ranks: faults of it are found, and healthy models pass."""

import pytest

from faultline.base.paths import ROOT
from tests.support.night import sampled

pytestmark = pytest.mark.slow

FILE = ROOT / "tests" / "support" / "stateful.py"
ENGINES = ("ddp", "zero2", "zero3", "fsdp1-full", "fsdp2")
RIGHT = [
    # What moves alike on every rank: the reference moves it once, and a cache counts for nothing.
    *((model, name, "", "") for model in ("counter", "average", "spectral", "group_norm") for name in ENGINES),
    # What DDP broadcasts: other ranks get rank 0's buffers with the next forward pass, or between two.
    *((model, "ddp", "", "") for model in ("batch_norm", "statistic", "two_passes")),
    ("average", "ddp", "LAST_BIT", ""),  # overwritten before anything is computed with it
    # A frozen parameter, where parameters are whole.
    *(("frozen_average", name, "", "") for name in ("ddp", "zero2")),
]
FOUND = [
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
]
# Each rank keeps buffers of its own, which no engine but DDP synchronises.
APART = [(*each, name) for each in (("batch_norm", "running_mean"), ("statistic", "mean")) for name in ENGINES[1:]]


@pytest.mark.parametrize(("model", "name", "strategy"), sampled(APART, 3))
def test_buffers_that_no_engine_synchronises_are_named(run, model, name, strategy):
    """Breaks when ranks whose running statistics differ are called right; a checkpoint has those of one."""
    result = run(f"stateful.py:{model}", strategy)
    assert (result.outcome, result.signature) == ("diverges", "buffers-apart"), result.detail
    assert f"between.{name}" in result.finding.apart
    assert "between.constant" not in result.finding.apart


@pytest.mark.parametrize(
    ("model", "strategy", "fault", "signature"),
    [*sampled(RIGHT, 3, lambda model, _, fault, __: (model, fault)), *FOUND],
)
def test_what_is_kept_rightly_trains_and_a_fault_of_it_is_found(run, model, strategy, fault, signature):
    """Breaks when the reference moves a model's state once for each rank; when ranks are held against what their own
    rows left, of which a broadcast left nothing; or when a buffer or a frozen parameter is left out of what is
    compared, on any rank."""
    result = run(f"stateful.py:{model}", strategy, inject=fault and f"{FILE}:{fault}")
    wanted = ("diverges", signature) if signature else ("trains", "")
    assert (result.outcome, result.signature) == wanted, result.detail
