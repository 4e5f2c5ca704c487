"""The oracle finds every fault that is seeded into a healthy run, and raises no alarm at what is none."""

import fnmatch
import re

import pytest

from faultline import strategies
from faultline.base import text
from faultline.base.paths import ROOT
from faultline.catalogue import loading
from faultline.cells import cell as cells
from faultline.cells import expected, rules
from faultline.cells.cell import Cell
from faultline.observations import measured
from faultline.runs import runner
from tests.support.faults import ADAPTER

pytestmark = pytest.mark.slow

FAULTS = ROOT / "tests" / "support" / "faults.py"

FULL = "zero_double_reduction", "one_call"  # trains every parameter, and runs under every strategy
UNUSED = "zero3_dummy_loss", "no_dummy"  # has parameters without a gradient: None here, zeros there
LORA = "grpo_lora_no_grad", "check_graph"
TRAINER = "grpo_lora_no_grad", "sft-broken"
ACCUMULATED = "zero12_manual_ga_keeps_last_microbatch", "native"
WEIGHTED = "custom_loss_ignores_num_items", "num_items"  # a loss of one's own, and unequal micro-batches
UNFROZEN = "ddp_unfreeze_after_wrap", "anew"
ZERO_UNFROZEN = "zero_unfreeze_after_initialize", "anew"
OWN_OPTIMIZER = "zero_unfreeze_after_initialize", "lr_zero"  # whose learning rate is raised between steps
SECOND = "fsdp_reference_model", "helper"

# Ways to do one thing: each strategy takes the first that trains under it.
BY_HAND = tuple(("zero12_manual_ga_keeps_last_microbatch", variant) for variant in ("broken", "boundary"))
MERGED = "fsdp_sharded_save_model_writes_nothing", "merge"
SAVED = ("zero3_save_pretrained_empty", "state_dict"), MERGED
SAVED_BY_ALL = ("rank0_only_save", "all_ranks"), MERGED
RESUMED = "rank0_only_save", "resumed_all_ranks"  # under DDP, with all that each rank resumes from


def but(reasons):
    """Every strategy but those that these patterns name, each with its reason: a new one is tried by itself."""
    assert all(fnmatch.filter(strategies.names(), pattern) for pattern in reasons), "a pattern names no strategy"
    return [name for name in strategies.names() if not text.matches(name, tuple(reasons))]


EVERY = but({})
NO_PEERS = {"single": "one process has no peers"}
NO_STATIC_GRAPH = {"ddp-static-graph": "torch refuses `no_sync` with a static graph"}
OWN_SHARDS = {"zero[123]*": "the engine hands the optimizer shards of what it finds in the model"}
WHOLE = dict.fromkeys(("ddp*", "zero[012]*", "fsdp1-no*"), "every rank has all weights, and gathers none")
SHARDS = dict.fromkeys(("zero3*", "fsdp1-[fg]*", "fsdp2*"), "ranks gather the same shards, and can't differ")
NO_OPTIMIZER = dict.fromkeys(("single", "ddp*", "zero0*", "fsdp*"), "the engine has none of its own")
NO_WRAPPER = {
    "single": "the model is bare",
    "zero*": "reduces in hooks of the parameters",
    "fsdp1-[fg]*": "what isn't gathered raises in the forward pass",
    "fsdp2*": "wraps in place",
}
NO_GATHERING = {"fsdp1-[fg]*": "torch dies of SIGSEGV where FSDP1 gathers on a CPU"}

ALL = but(NO_PEERS)
DDP = fnmatch.filter(ALL, "ddp*")
SUBSET = [name for name in strategies.listed_as("USUAL") if name != "single"]
GATHERED = but(NO_PEERS | WHOLE | NO_GATHERING)


def one_of(scenarios, strategy):
    """The first of several scenarios that is known to train under a strategy; raises LookupError without one."""
    for scenario in scenarios:
        failure, asked = loading.failures()[scenario[0]], cell(scenario, strategy)
        answer = expected.expect(expected.rules(failure), asked, measured.pinned())
        if rules.possible(asked, failure.variant(asked.variant)) and answer.outcome == "trains":
            return scenario
    raise LookupError(f"none of {scenarios} trains under {strategy}: add one that does, or exclude it with a reason")


def cell(scenario, strategy, precision="fp32"):
    return Cell(*scenario, strategy, precision=precision, world_size=1 if strategy == "single" else 2)


# What a fault has to be called, and what has to be named as the worst of it.
AT_LAST_STEP = r"\w.* \((gradients|weights), step 3, rank \d\)"
EXPECTED = {
    "UNREDUCED_ON_ONE_RANK": (ALL, "diverges", "differs", AT_LAST_STEP),
    "UNREDUCED_EVERYWHERE": (SUBSET, "diverges", "differs", AT_LAST_STEP),
    "BYPASSED_WRAPPER": (but(NO_WRAPPER), "diverges", "differs", r"\w.* \(gradients, step \d, rank \d\)"),
    "LOST_CONTRIBUTION": (ALL, "diverges", "differs", AT_LAST_STEP),
    "SCALED_BY_WORLD_SIZE": (ALL, "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "FROZEN_ADAPTER": (EVERY, "diverges", "unmoved", rf".*{ADAPTER}\..*"),
    "STALE_WEIGHTS": (ALL, "diverges", "differs", r"\w.* \(weights, step 3, rank \d\)"),
    "STALE_SHARD": (but(NO_OPTIMIZER), "diverges", "differs", r"\w.* \(weights, step 3, rank \d\)"),
    "NAN_LOSS": (ALL, "diverges", "nan", r"gradients:\w.* at step 3 on rank \d"),
    "NAN_WEIGHT": (ALL, "diverges", "nan", r"weights:\w.* at step 3 on rank \d"),
    "OTHER_ORDER": (ALL, "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "DRIFT": (but(NO_PEERS | SHARDS), "diverges", "differs", r"\w.* \(weights, step 3, rank 1\)"),
    "ONE_BIT": (but(NO_PEERS | SHARDS), "diverges", "ranks-differ", r"\w.*"),
    "LOST_IN_TRAINER": (ALL, "diverges", "differs", r"\w.* \(weights, step 3, rank \d\)"),
    "WRONG_TOKEN_WEIGHT": (ALL, "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "WRONG_COUNT": (but(NO_STATIC_GRAPH), "diverges", "differs", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "LOST_MICRO_BATCH": (EVERY, "diverges", "differs", AT_LAST_STEP),
    "MISSING_TENSOR": (EVERY, "diverges", "checkpoint-lacks", ""),
    "EMPTY_TENSOR": (EVERY, "diverges", "checkpoint-lacks", ""),
    "STALE_TENSOR": (EVERY, "diverges", "checkpoint-differs", ""),
    "DEAD_PARAMETERS": (but(OWN_SHARDS), "diverges", "unmoved", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    "DEAD_SHARDS": (but(NO_OPTIMIZER), "diverges", "unmoved", r"\w.* \((gradients|weights), step \d, rank \d\)"),
    # Such a run could agree with a reference that was given the same rows: it proves nothing of reduction.
    "SAME_ROWS": (ALL, "invalid", "evidence", ""),
    # Nothing is left to train, and every engine says so before the first step.
    "ALL_FROZEN": (SUBSET, "raises", "other", ""),
}


ELSEWHERE = {
    *("LOST_IN_TRAINER", "ALL_FROZEN", "LOST_MICRO_BATCH", "WRONG_COUNT"),
    *("MISSING_TENSOR", "EMPTY_TENSOR", "STALE_TENSOR"),
}


@pytest.fixture
def run(shared_server, references):
    """Run a cell with a change to it, and give back its result."""

    def run(cell, change=None):
        return runner.run_cell(shared_server, references, cell, f"{FAULTS}:{change}" if change else None)

    return run


def everywhere(*faults):
    return [(fault, strategy) for fault in faults or EXPECTED for strategy in EXPECTED[fault][0]]


def readable(value):
    """A scenario's name in that of its test."""
    return "/".join(value) if isinstance(value, tuple) else value


def check(entry, fault):
    _, outcome, signature, worst = EXPECTED[fault]
    if entry.cell.precision == "bf16" and fault == "STALE_WEIGHTS" and entry.signature == "unmoved":
        signature = "unmoved"  # one step back may be all that a weight has moved in bf16
    assert (entry.outcome, entry.signature) == (outcome, signature), entry.detail or "not caught"
    assert re.fullmatch(worst, entry.worst_parameter), f"the worst is said to be {entry.worst_parameter!r}"


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


@pytest.mark.parametrize(
    ("scenarios", "strategy"),
    [pytest.param((ACCUMULATED,), name, id=f"native-{name}") for name in but(NO_STATIC_GRAPH)]
    + [pytest.param(BY_HAND, name, id=f"by-hand-{name}") for name in EVERY],
)
def test_a_lost_micro_batch_is_caught(run, scenarios, strategy):
    """Breaks when gradient accumulation, an engine's or a loop's own, can lose what a micro-batch brings."""
    check(run(cell(one_of(scenarios, strategy), strategy), "LOST_MICRO_BATCH"), "LOST_MICRO_BATCH")


@pytest.mark.parametrize(("fault", "strategy"), everywhere("WRONG_COUNT"))
def test_a_wrong_weight_of_micro_batches_is_caught(run, fault, strategy):
    """Breaks when a loss of one's own can weight tokens by how many its own micro-batch has, also in one process."""
    check(run(cell(WEIGHTED, strategy), fault), fault)


@pytest.mark.parametrize("strategy", [name for name in ALL if name not in but(OWN_SHARDS)])
def test_an_engine_with_shards_refuses_dead_parameters(run, strategy):
    """Breaks when the engines that are left out of DEAD_PARAMETERS take an optimizer of what isn't in the model."""
    entry = run(cell(FULL, strategy), "DEAD_PARAMETERS")
    assert (entry.outcome, entry.signature) == ("raises", "other"), entry.detail or "not caught"


@pytest.mark.parametrize(("fault", "strategy"), everywhere("MISSING_TENSOR", "EMPTY_TENSOR", "STALE_TENSOR"))
def test_a_spoilt_checkpoint_is_caught(run, fault, strategy):
    """Breaks when a checkpoint passes that lacks a tensor, or has another one than the model; it must be named."""
    entry = run(cell(one_of(SAVED, strategy), strategy), fault)
    check(entry, fault)
    assert "model.layers.0.mlp.up_proj.weight" in entry.detail


@pytest.mark.parametrize("strategy", [name for name in ALL if name not in DDP])
def test_a_rank_that_saves_alone_is_caught(run, strategy):
    """Breaks when a collective that lacks a rank passes; gloo ends it with an abort, or it hangs."""
    entry = run(cell(one_of(SAVED if strategy in GATHERED else SAVED_BY_ALL, strategy), strategy), "ONE_RANK_SAVES")
    assert entry.outcome in ("hangs", "crashes"), entry.detail or "not caught"


@pytest.mark.parametrize("strategy", DDP)
def test_what_a_rank_alone_does_not_save_is_missed(run, strategy):
    """Breaks when a checkpoint passes that lacks what the other rank resumes from: DDP's saving waits for none."""
    entry = run(cell(RESUMED, strategy), "ONE_RANK_SAVES")
    assert (entry.outcome, entry.signature) == ("diverges", "checkpoint-lacks"), entry.detail or "not caught"
    assert "random_states_1.pkl" in entry.detail


@pytest.mark.parametrize(
    ("change", "strategy", "precision"),
    [("INTERLEAVED_ROWS", name, "fp32") for name in ALL]
    + [("SLIGHTLY_OFF", name, "fp32") for name in SUBSET]
    + [("INTERLEAVED_ROWS", name, "bf16") for name in SUBSET],
)
def test_a_change_that_is_no_fault_passes(run, change, strategy, precision):
    """Breaks when another order of summation, or an error of a millionth, is taken for a fault."""
    entry = run(cell(FULL, strategy, precision), change)
    assert entry.outcome == "trains", entry.detail


HEALTHY = [
    *((FULL, name) for name in ALL),
    *((UNUSED, name) for name in SUBSET if name != "ddp"),
    (UNUSED, "ddp-find-unused"),
    *((LORA, name) for name in (*SUBSET, "fsdp1-no-shard")),
    *((ACCUMULATED, name) for name in but(NO_STATIC_GRAPH)),
    *((one_of(SAVED, name), name) for name in EVERY),
    *((RESUMED, name) for name in DDP),
]


@pytest.mark.parametrize(("scenario", "strategy"), HEALTHY, ids=readable)
def test_a_healthy_run_stays_far_from_the_tolerance(run, scenario, strategy):
    """Breaks when the oracle raises an alarm at a healthy run, or soon will: the noise is a tenth of the tolerance."""
    assert not alarm(run(cell(scenario, strategy)))


def alarm(entry):
    """What is said against a run that is healthy, or too near to it."""
    near = entry.outcome == "trains" and not entry.relative_error < cells.TOLERANCE["fp32"] / 10
    return f"off by {entry.relative_error}" if near else f"{entry.outcome}: {entry.detail}".removeprefix("trains: ")


# Thirty repeats take long: of each kind of cells some, dealt over the strategies so that each has several kinds.
REPEATED = [
    *((FULL, name) for name in SUBSET if name != "zero3"),  # where it takes longest
    *((ACCUMULATED, name) for name in ("zero2", "fsdp1-full", "fsdp2")),
    *((one_of(BY_HAND, name), name) for name in ("ddp", "zero2")),
    *((one_of(SAVED, name), name) for name in ("ddp", "zero3")),
    (UNFROZEN, "ddp"),
    (ZERO_UNFROZEN, "zero3"),
    (OWN_OPTIMIZER, "fsdp2"),
    (WEIGHTED, "ddp"),
    (SECOND, "fsdp1-full"),
]


@pytest.mark.parametrize(("scenario", "strategy"), REPEATED, ids=readable)
def test_thirty_repeats_of_a_healthy_run_raise_no_alarm(run, scenario, strategy):
    """Breaks when a run of the same cell fails now and then."""
    assert [answer for _ in range(30) if (answer := alarm(run(cell(scenario, strategy))))] == []
