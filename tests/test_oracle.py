"""The oracle finds every fault that is seeded into a healthy run, and raises no alarm at what is none."""

import re
import sys
from pathlib import Path

import pytest

from faultline import compare, matrix, runner, strategies
from faultline.matrix import Cell
from faultline.ranks import RankServer
from tests.faults import ADAPTER

pytestmark = pytest.mark.slow

FAULTS = Path(__file__).with_name("faults.py")

FULL = "zero_double_reduction", "one_call"  # trains every parameter, and runs under every strategy
UNUSED = "zero3_dummy_loss", "no_dummy"  # has parameters without a gradient: None here, zeros there
LORA = "grpo_lora_no_grad", "check_graph"
TRAINER = "grpo_lora_no_grad", "sft-broken"
ACCUMULATED = "zero12_manual_ga_keeps_last_microbatch", "native"
SAVED = "zero3_save_pretrained_empty", "state_dict"

ALL = [name for name in strategies.names() if name != "single"]
SUBSET = [name for name in matrix.SUBSET_STRATEGIES if name != "single"]
DDP = [name for name in ALL if name.startswith("ddp")]
# Elsewhere no rank has a whole replica: ranks gather the same shards, and can't differ.
REPLICATED = [name for name in ALL if name.startswith(("ddp", "zero0", "zero1", "zero2", "fsdp1-no"))]
# Elsewhere the engine has no optimizer of its own; there, STALE_WEIGHTS is the same fault.
ZERO_SHARDS = [name for name in ALL if name.startswith(("zero1", "zero2", "zero3"))]

NO_STATIC_GRAPH = [name for name in ALL if name != "ddp-static-graph"]  # torch refuses `no_sync` with it
NOT_ZERO = [name for name in ALL if not name.startswith("zero")]  # which looks for the optimizer's parameters
# FSDP1 dies of SIGSEGV where it gathers a checkpoint on a CPU.
SAVES = [name for name in ALL if name not in ("fsdp1-full", "fsdp1-grad-op")]

# What a fault has to be called, and what has to be named as the worst of it.
AT_LAST_STEP = r"\w.* \((gradients|weights), step 3, rank \d\)"
EXPECTED = {
    "UNREDUCED_ON_ONE_RANK": (ALL, "diverges", "differs", AT_LAST_STEP),
    "UNREDUCED_EVERYWHERE": (SUBSET, "diverges", "differs", AT_LAST_STEP),
    "BYPASSED_WRAPPER": (DDP, "diverges", "differs", r"\w.* \(gradients, step \d, rank \d\)"),
    "LOST_CONTRIBUTION": (ALL, "diverges", "differs", AT_LAST_STEP),
    "SCALED_BY_WORLD_SIZE": (ALL, "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "FROZEN_ADAPTER": (["single", *ALL], "diverges", "unmoved", rf".*{ADAPTER}\..*"),
    "STALE_WEIGHTS": (ALL, "diverges", "differs", r"\w.* \(weights, step 3, rank \d\)"),
    "STALE_SHARD": (ZERO_SHARDS, "diverges", "differs", r"\w.* \(weights, step 3, rank \d\)"),
    "NAN_LOSS": (ALL, "diverges", "nan", r"gradients:\w.* at step 3 on rank \d"),
    "NAN_WEIGHT": (ALL, "diverges", "nan", r"weights:\w.* at step 3 on rank \d"),
    "OTHER_ORDER": (ALL, "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "DRIFT": (REPLICATED, "diverges", "differs", r"\w.* \(weights, step 3, rank 1\)"),
    "ONE_BIT": (REPLICATED, "diverges", "ranks-differ", r"\w.*"),
    "LOST_IN_TRAINER": (ALL, "diverges", "differs", r"\w.* \(weights, step 3, rank \d\)"),
    "WRONG_TOKEN_WEIGHT": (ALL, "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "LOST_MICRO_BATCH": (NO_STATIC_GRAPH, "diverges", "differs", AT_LAST_STEP),
    "MISSING_TENSOR": (SAVES, "diverges", "checkpoint-lacks", ""),
    "EMPTY_TENSOR": (SAVES, "diverges", "checkpoint-lacks", ""),
    "STALE_TENSOR": (SAVES, "diverges", "checkpoint-differs", ""),
    "DEAD_PARAMETERS": (NOT_ZERO, "diverges", "unmoved", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    # Such a run could agree with a reference that was given the same rows: it proves nothing of reduction.
    "SAME_ROWS": (ALL, "invalid", "evidence", ""),
    # Nothing is left to train, and every engine says so before the first step.
    "ALL_FROZEN": (SUBSET, "raises", "other", ""),
}


ELSEWHERE = {"LOST_IN_TRAINER", "ALL_FROZEN", "LOST_MICRO_BATCH", "MISSING_TENSOR", "EMPTY_TENSOR", "STALE_TENSOR"}


@pytest.fixture(scope="module")
def run():
    """Run a cell with a change to it, and give back its result."""
    with RankServer(sys.executable) as server:
        references = runner.References(server.folder)

        def run(cell, change=None):
            return runner.run_cell(server, references, cell, f"{FAULTS}:{change}" if change else None)

        yield run


def cell(scenario, strategy, precision="fp32"):
    return Cell(*scenario, strategy, precision=precision, world_size=1 if strategy == "single" else 2)


def everywhere(*faults):
    return [(fault, strategy) for fault in faults or EXPECTED for strategy in EXPECTED[fault][0]]


def check(entry, fault):
    _, outcome, signature, worst = EXPECTED[fault]
    if entry["precision"] == "bf16" and fault == "STALE_WEIGHTS" and entry["signature"] == "unmoved":
        signature = "unmoved"  # one step back may be all that a weight has moved in bf16
    assert (entry["outcome"], entry["signature"]) == (outcome, signature), entry["detail"] or "not caught"
    assert re.fullmatch(worst, entry["worst_parameter"]), f"the worst is said to be {entry['worst_parameter']!r}"


@pytest.mark.parametrize(("fault", "strategy"), everywhere(*(name for name in EXPECTED if name not in ELSEWHERE)))
def test_a_fault_is_caught(run, fault, strategy):
    """Breaks when a run with this fault passes for a healthy one, or when it is called something else."""
    check(run(cell(FULL, strategy), fault), fault)


@pytest.mark.parametrize("strategy", SUBSET)
@pytest.mark.parametrize(
    "fault",
    "LOST_CONTRIBUTION SCALED_BY_WORLD_SIZE UNREDUCED_ON_ONE_RANK FROZEN_ADAPTER STALE_WEIGHTS NAN_WEIGHT".split(),
)
def test_a_fault_is_caught_in_bf16(run, fault, strategy):
    """Breaks when a fault hides in the rounding of bf16, or in weights that are not read: ZeRO has two of each."""
    check(run(cell(FULL, strategy, "bf16"), fault), fault)


@pytest.mark.parametrize(("fault", "strategy"), everywhere("FROZEN_ADAPTER", "ALL_FROZEN"))
def test_a_frozen_adapter_is_caught(run, fault, strategy):
    """Breaks when adapters that don't train pass, where most parameters are frozen by right."""
    check(run(cell(LORA, strategy), fault), fault)


@pytest.mark.parametrize(
    ("fault", "strategy", "precision"),
    [(*case, "fp32") for case in everywhere("LOST_IN_TRAINER", "FROZEN_ADAPTER")]
    + [(fault, strategy, "bf16") for fault in ("LOST_IN_TRAINER", "FROZEN_ADAPTER") for strategy in SUBSET],
)
def test_a_fault_is_caught_in_a_trainer(run, fault, strategy, precision):
    """Breaks when a fault passes where only weights are read, and no gradients."""
    check(run(cell(TRAINER, strategy, precision), fault), fault)


@pytest.mark.parametrize(("fault", "strategy"), everywhere("LOST_MICRO_BATCH"))
def test_a_lost_micro_batch_is_caught(run, fault, strategy):
    """Breaks when an engine's gradient accumulation can lose what a micro-batch brings."""
    check(run(cell(ACCUMULATED, strategy), fault), fault)


@pytest.mark.parametrize(("fault", "strategy"), everywhere("MISSING_TENSOR", "EMPTY_TENSOR", "STALE_TENSOR"))
def test_a_spoilt_checkpoint_is_caught(run, fault, strategy):
    """Breaks when a checkpoint passes that lacks a tensor, or has another one than the model; it must be named."""
    entry = run(cell(SAVED, strategy), fault)
    check(entry, fault)
    assert "model.layers.0.mlp.up_proj.weight" in entry["detail"]


@pytest.mark.parametrize("strategy", ["zero3", "fsdp2"])
def test_a_rank_that_saves_alone_is_caught(run, strategy):
    """Breaks when a collective that lacks a rank passes; gloo ends it with an abort, or it hangs."""
    entry = run(cell(SAVED, strategy), "ONE_RANK_SAVES")
    assert entry["outcome"] in ("hangs", "crashes"), entry["detail"] or "not caught"


@pytest.mark.parametrize(
    ("change", "strategy", "precision"),
    [("INTERLEAVED_ROWS", name, "fp32") for name in ALL]
    + [("SLIGHTLY_OFF", name, "fp32") for name in SUBSET]
    + [("INTERLEAVED_ROWS", name, "bf16") for name in SUBSET],
)
def test_a_change_that_is_no_fault_passes(run, change, strategy, precision):
    """Breaks when another order of summation, or an error of a millionth, is taken for a fault."""
    entry = run(cell(FULL, strategy, precision), change)
    assert entry["outcome"] == "trains", entry["detail"]


HEALTHY = [
    *((FULL, name) for name in ALL),
    *((UNUSED, name) for name in SUBSET if name != "ddp"),
    (UNUSED, "ddp-find-unused"),
    *((LORA, name) for name in (*SUBSET, "fsdp1-no-shard")),
    *((ACCUMULATED, name) for name in NO_STATIC_GRAPH),
    *((SAVED, name) for name in SAVES),
]


@pytest.mark.parametrize(("scenario", "strategy"), HEALTHY)
def test_a_healthy_run_stays_far_from_the_tolerance(run, scenario, strategy):
    """Breaks when the oracle raises an alarm at a healthy run, or soon will: the noise is a tenth of the tolerance."""
    entry = run(cell(scenario, strategy))
    assert entry["outcome"] == "trains", entry["detail"]
    assert entry["relative_error"] < compare.TOLERANCE["fp32"] / 10


@pytest.mark.parametrize(
    ("scenario", "strategy"),
    [(FULL, name) for name in SUBSET]
    + [(ACCUMULATED, name) for name in SUBSET]
    + [(SAVED, name) for name in SUBSET if name in SAVES],
)
def test_thirty_repeats_of_a_healthy_run_raise_no_alarm(run, scenario, strategy):
    """Breaks when a run of the same cell fails now and then."""
    alarms = [entry for _ in range(30) if (entry := run(cell(scenario, strategy)))["outcome"] != "trains"]
    assert [(entry["outcome"], entry["detail"]) for entry in alarms] == []
