"""The oracle finds every fault that is seeded into a healthy run, and raises no alarm at what is none."""

import pytest

from faultline import strategies
from faultline.cells import cell as cells
from lab.proofs import planting
from tests.support.night import sampled

pytestmark = pytest.mark.slow

UNUSED = "zero3_dummy_loss", "no_dummy"  # has parameters without a gradient: None here, zeros there


def readable(value):
    """A scenario's name, or a fault and its cell, in that of its test."""
    if isinstance(value, planting.Planted):
        return f"{value.fault}-{value.cell.id}"
    return "/".join(value) if isinstance(value, tuple) else value


def alike(planted):
    """What one of runs by day: a fault under one of two families of engines."""
    return planted.fault, strategies.family(planted.cell.strategy).order % 2


def dealt():
    """Every seeded fault, those alike together; the first of each is under another strategy, or in another cell, than
    those before, so that all engines, trainers and bf16 have some by day."""
    kinds = {}
    for planted in planting.planted():
        kinds.setdefault(alike(planted), []).append(planted)
    for number, group in enumerate(kinds.values()):
        first = number % len(group)
        yield from group[first:] + group[:first]


@pytest.mark.parametrize("planted", sampled(dealt(), 1000, alike), ids=readable)
def test_a_fault_is_caught(run, planted):
    """Breaks when a run with this fault passes for a healthy one, or when it is called something else."""
    result = run(planted.cell, planted.fault)
    assert planted.named.fits(result), (result.did, result.worst_parameter, result.detail or "not caught")
    if planted.cell.life == "resumed":
        assert result.signature == "resumed-differs" and result.detail.startswith("after resuming: ")
        at_once = planted.fault != "RANDOM_STATE_OF_ONE_RANK"
        assert not at_once or result.finding.first.step == cells.HALF + 1, "the first step of the second half"


@pytest.mark.parametrize(
    ("change", "strategy", "precision"),
    sampled(
        [
            *(("INTERLEAVED_ROWS", name, "fp32") for name in planting.ALL),
            *(("SLIGHTLY_OFF", name, "fp32") for name in planting.SUBSET),
            *(("INTERLEAVED_ROWS", name, "bf16") for name in planting.SUBSET),
            *(("SAME_NODES", name, "fp32") for name in planting.WITH_MESH),
        ],
        every=6,
        kind=lambda change, strategy, precision: (change, precision),
    ),
)
def test_a_change_that_is_no_fault_passes(run, change, strategy, precision):
    """Breaks when another order of summation, or an error of a millionth, is taken for a fault."""
    entry = run(planting.cell(planting.FULL, strategy, precision), change)
    assert entry.outcome == "trains", entry.detail


HEALTHY = [
    *((planting.FULL, name) for name in planting.ALL),
    *((UNUSED, name) for name in planting.SUBSET if name != "ddp"),
    (UNUSED, "ddp-find-unused"),
    *((planting.LORA, name) for name in (*planting.SUBSET, "fsdp1-no-shard")),
    *((planting.ACCUMULATED, name) for name in planting.all_but(planting.NO_STATIC_GRAPH)),
    *((planting.first_training(planting.SAVED, name), name) for name in planting.all_but(planting.NO_MESH)),
    *((planting.RESUMED, name) for name in planting.DDP),
]


@pytest.mark.parametrize(
    ("scenario", "strategy"), sampled(HEALTHY, 8, lambda scenario, strategy: scenario), ids=readable
)
def test_a_healthy_run_stays_far_from_the_tolerance(run, scenario, strategy):
    """Breaks when the oracle raises an alarm at a healthy run, or soon will: the noise is a tenth of the tolerance."""
    entry = run(planting.cell(scenario, strategy))
    assert entry.outcome == "trains", entry.detail
    assert entry.relative_error < cells.TOLERANCE["fp32"] / 10
