"""Where each fault can be seeded into the matrix, and what it has to be called there."""

import fnmatch
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from faultline import strategies
from faultline.base import text
from faultline.catalogue import loading
from faultline.cells import expected, rules
from faultline.cells.cell import HALF, STEPS, Cell
from faultline.observations import measured
from faultline.runs.results import Result
from faultline.strategies import Holds
from lab.programs.fault import Fault

ADAPTER = "model.layers.0.self_attn.q_proj"  # what is frozen: one projection's, as a wrong pattern of names does it

Scenario = tuple[str, str]

FULL = "zero_double_reduction", "one_call"  # trains every parameter, and runs under every strategy
LORA = "grpo_lora_no_grad", "check_graph"
TRAINER = "grpo_lora_no_grad", "sft-broken"
ACCUMULATED = "zero12_manual_ga_keeps_last_microbatch", "native"
WEIGHTED = "custom_loss_ignores_num_items", "num_items"  # a loss of one's own, and unequal micro-batches

OF_LOADED = ("moe_aux_loss_times_world_size", "divided"), ("zero0_bf16_loss_scale", "broken")

# Ways to do one thing: each strategy takes the first that trains under it.
BY_HAND = tuple(("zero12_manual_ga_keeps_last_microbatch", variant) for variant in ("broken", "boundary"))
MERGED = "fsdp_sharded_save_model_writes_nothing", "merge"
SAVED = ("zero3_save_pretrained_empty", "state_dict"), MERGED
SAVED_BY_ALL = ("rank0_only_save", "all_ranks"), MERGED
RESUMED = "rank0_only_save", "resumed_all_ranks"  # under DDP, with all that each rank resumes from


LOADED = [name for name in strategies.names() if strategies.family(name).load_model]
"""Those whose models are loaded in shards, which have cells of their own."""


def all_but(reasons: Mapping[str, str]) -> list[str]:
    """Every other strategy but those that these patterns name, each with its reason: a new one is tried by itself."""
    assert all(fnmatch.filter(strategies.names(), pattern) for pattern in reasons), "a pattern names no strategy"
    return [name for name in strategies.names() if name not in LOADED and not text.matches(name, tuple(reasons))]


def that_hold(*what: Holds) -> list[str]:
    """The strategies under which a rank holds one of these of the weights."""
    return [name for name in strategies.names() if strategies.holds(name) in what]


EVERY = all_but({})
NO_PEERS = {"single": "one process has no peers"}
NO_STATIC_GRAPH = {"ddp-static-graph": "torch refuses `no_sync` with a static graph"}
OWN_SHARDS = {"zero[123]*": "the engine hands the optimizer shards of what it finds in the model"}
WHOLE = dict.fromkeys(that_hold(Holds.WHOLE, Holds.UNITS), "every rank has all weights, and gathers none")
SHARDS = dict.fromkeys(that_hold(Holds.SHARDS), "ranks gather the same shards, and can't differ")
NO_OPTIMIZER = dict.fromkeys(("single", "ddp*", "zero0*", "fsdp*"), "the engine has none of its own")
NO_WRAPPER = {
    "single": "the model is bare",
    "zero*": "reduces in hooks of the parameters",
    "fsdp1-[fgh]*": "what isn't gathered raises in the forward pass",
    "fsdp2*": "wraps in place",
}
NO_GATHERING = {"fsdp1-[fgh]*": "torch dies of SIGSEGV where FSDP1 gathers on a CPU"}

NO_MESH = {"fsdp1-hybrid": "accelerate hands FSDP1 no mesh, so trainers have none either"}
ONE_GROUP = {"zero*": "gradients are reduced among all ranks at once"}

ALL = all_but(NO_PEERS)
OF_NODES = [name for name in ALL if strategies.usual_ranks(name) > 2]
WITH_MESH = [name for name in OF_NODES if name in all_but(ONE_GROUP)]
DDP = fnmatch.filter(ALL, "ddp*")
SUBSET = [name for name in strategies.usual_names() if name != "single"]
GATHERED = all_but(NO_PEERS | WHOLE | NO_GATHERING)


@dataclass(frozen=True)
class Named:
    """What a fault has to be called, as patterns of the whole outcome, signature and worst parameter, and of a part of
    the detail."""

    outcome: str = "diverges"
    signature: str = "differs"
    worst: str = ".*"
    detail: str = ""

    def fits(self, entry: Result) -> bool:
        """Whether a cell is called so."""
        whole = (self.outcome, entry.outcome), (self.signature, entry.signature), (self.worst, entry.worst_parameter)
        return all(re.fullmatch(pattern, value) for pattern, value in whole) and bool(
            re.search(self.detail, entry.detail)
        )


@dataclass(frozen=True)
class Planted:
    """A cell that trains, the fault that is seeded into it, and what it has to be called then."""

    cell: Cell
    fault: str
    named: Named


# What is named as the worst of a fault.
AT_LAST_STEP = r"\w.* \((gradients|weights), step 3, rank \d\)"
IN_A_STEP = r"\w.* \((gradients|weights), step \d, rank \d\)"
IN_WEIGHTS = r"\w.* \(weights, step 3, rank \d\)"
UP_PROJECTION = re.escape("model.layers.0.mlp.up_proj.weight")

LAST = STEPS  # one-step faults strike here: no later step makes them larger
TRAINING: Mapping[str, tuple[Fault, Sequence[str], Named]] = {
    "UNREDUCED_ON_ONE_RANK": (Fault("one unreduced", step=LAST), ALL, Named(worst=AT_LAST_STEP)),
    "UNREDUCED_EVERYWHERE": (Fault("unreduced", step=LAST), SUBSET, Named(worst=AT_LAST_STEP)),
    "BYPASSED_WRAPPER": (Fault("bypassed"), all_but(NO_WRAPPER), Named(worst=r"\w.* \(gradients, step \d, rank \d\)")),
    "LOST_CONTRIBUTION": (Fault("share", step=LAST, times=0.0), ALL, Named(worst=AT_LAST_STEP)),
    "SCALED_BY_WORLD_SIZE": (Fault("world size"), ALL, Named(worst=IN_A_STEP)),
    "FROZEN_ADAPTER": (
        Fault("frozen", ADAPTER),
        EVERY,
        Named(signature="unmoved", worst=rf".*{re.escape(ADAPTER)}\..*"),
    ),
    "STALE_WEIGHTS": (Fault("stale", step=LAST), ALL, Named(worst=IN_WEIGHTS)),
    "STALE_SHARD": (Fault("skipped", step=LAST), all_but(NO_OPTIMIZER), Named(worst=IN_WEIGHTS)),
    "NAN_LOSS": (
        Fault("share", step=LAST, times=math.nan),
        ALL,
        Named(signature="nan", worst=r"gradients:\w.* at step 3 on rank \d"),
    ),
    "NAN_WEIGHT": (
        Fault("nan weight", step=LAST),
        ALL,
        Named(signature="nan", worst=r"weights:\w.* at step 3 on rank \d"),
    ),
    "OTHER_ORDER": (Fault("other order"), ALL, Named(worst=IN_A_STEP)),
    # A peer in the rank's node sees its shard drift too.
    "DRIFT": (
        Fault("drift", step=LAST),
        all_but(NO_PEERS | SHARDS),
        Named(worst=r"\w.* \(weights, step 3, rank [01]\)"),
    ),
    "ONE_BIT": (Fault("bit", step=LAST), all_but(NO_PEERS | SHARDS), Named(signature="ranks-differ", worst=r"\w.*")),
    "WRONG_TOKEN_WEIGHT": (Fault("own mean"), ALL, Named(worst=IN_A_STEP)),
    "DEAD_PARAMETERS": (Fault("dead"), all_but(OWN_SHARDS), Named(signature="unmoved", worst=IN_A_STEP)),
    "DEAD_SHARDS": (Fault("dead shards"), all_but(NO_OPTIMIZER), Named(signature="unmoved", worst=IN_A_STEP)),
    # Such a run could agree with a reference that was given the same rows: it proves nothing of reduction.
    "SAME_ROWS": (Fault("same rows"), ALL, Named("invalid", "evidence", "")),
    "UNREDUCED_BETWEEN_NODES": (Fault("apart", step=LAST), WITH_MESH, Named(worst=AT_LAST_STEP)),
    "NODES_OF_ONE": (Fault("mesh", "nodes of one"), OF_NODES, Named("invalid", "evidence", "")),
    "ONE_NODE": (Fault("mesh", "one node"), OF_NODES, Named("invalid", "evidence", "")),
    "ACROSS_NODES": (
        Fault("mesh", "across nodes"),
        WITH_MESH,
        Named("invalid", "evidence", "", "among ranks 0, 2, not among the 2 of a node"),
    ),
    "IDLE_PARTITION": (
        Fault("mesh", "idle partition"),
        [name for name in OF_NODES if name not in WITH_MESH],
        Named("invalid", "evidence", "", "step 2 gathered nothing within the node"),
    ),
}
"""The faults of a training loop, with the strategies in which each can be seeded."""
FAULTS = {name: fault for name, (fault, _, _) in TRAINING.items()} | {
    "ALL_FROZEN": Fault("frozen"),
    "LOST_IN_TRAINER": Fault("share", step=LAST, times=0.0),
    "LOST_MICRO_BATCH": Fault("micro-batch", step=LAST, times=0.0),
    "WRONG_COUNT": Fault("own count"),
    "MISSING_TENSOR": Fault("missing"),
    "EMPTY_TENSOR": Fault("empty"),
    "STALE_TENSOR": Fault("stale tensor"),
    "ONE_RANK_SAVES": Fault("one saves"),
    "MOMENTUM_LOST": Fault("momentum", step=HALF + 1),
    "SCHEDULE_RESTARTED": Fault("schedule"),
    "RANDOM_STATE_OF_ONE_RANK": Fault("torch draws anew"),
    "PYTHON_DRAWS_ANEW": Fault("python draws anew"),
    "NUMPY_DRAWS_ANEW": Fault("numpy draws anew"),
    "DATA_FROM_THE_START": Fault("first rows"),
    # Changes that are none.
    "LOADED_TWICE": Fault("loaded twice"),
    "INTERLEAVED_ROWS": Fault("interleaved"),
    "SLIGHTLY_OFF": Fault("alternating", times=1e-6),
    "SAME_NODES": Fault("mesh", "same nodes"),
}
"""What is seeded into cells, by the name that a result has of it."""
IN_HALF = "LOST_CONTRIBUTION SCALED_BY_WORLD_SIZE UNREDUCED_ON_ONE_RANK FROZEN_ADAPTER STALE_WEIGHTS NAN_WEIGHT".split()
"""Those that are seeded into bf16 as well: they could hide in its rounding, or in weights that are not read."""
IN_LOADED = (
    "LOST_CONTRIBUTION STALE_WEIGHTS STALE_SHARD NAN_LOSS NAN_WEIGHT DRIFT DEAD_SHARDS UNREDUCED_EVERYWHERE"
    " UNREDUCED_ON_ONE_RANK".split()
)
"""Those of every model that is loaded in shards."""
IN_OTHER_ROWS = ("SCALED_BY_WORLD_SIZE", "WRONG_TOKEN_WEIGHT", "SAME_ROWS")
"""Those of ranks that don't all share one batch."""
RESUMING = ("MOMENTUM_LOST", "SCHEDULE_RESTARTED", "RANDOM_STATE_OF_ONE_RANK", "DATA_FROM_THE_START")
SPOILT = ("MISSING_TENSOR", "EMPTY_TENSOR", "STALE_TENSOR")
HANGS_OR_DIES = Named("hangs|crashes", ".*")  # gloo ends a collective that lacks a rank with an abort, or it hangs


def planted() -> Iterator[Planted]:
    """Every seeded fault in every strategy in which it can be seeded."""
    for fault, (_, names, named) in TRAINING.items():
        yield from _each(fault, (FULL,), names, named)
    for fault in IN_HALF:
        named = TRAINING[fault][2]
        if fault == "STALE_WEIGHTS":  # one step back may be all that a weight has moved in bf16
            named = replace(named, signature="differs|unmoved")
        yield from _each(fault, (FULL,), SUBSET, named, "bf16")
    for fault in (*IN_LOADED, *IN_OTHER_ROWS):
        names = [name for name in LOADED if fault in IN_LOADED or strategies.data_world(name, 4) > 1]
        yield from _each(fault, OF_LOADED, names, TRAINING[fault][2])
    frozen = TRAINING["FROZEN_ADAPTER"][2]
    yield from _each("FROZEN_ADAPTER", (LORA,), EVERY, frozen)
    # Nothing is left to train, and every engine says so before the first step.
    yield from _each("ALL_FROZEN", (LORA,), SUBSET, Named("raises", "other", ""))
    lost = Named(worst=IN_WEIGHTS)
    for fault, names, named in (
        ("FROZEN_ADAPTER", all_but(NO_MESH), frozen),
        ("LOST_IN_TRAINER", all_but(NO_PEERS | NO_MESH), lost),
    ):
        yield from _each(fault, (TRAINER,), names, named)
        yield from _each(fault, (TRAINER,), SUBSET, named, "bf16")
    yield from _each("LOST_MICRO_BATCH", (ACCUMULATED,), all_but(NO_STATIC_GRAPH), Named(worst=AT_LAST_STEP))
    yield from _each("LOST_MICRO_BATCH", BY_HAND, EVERY, Named(worst=AT_LAST_STEP))
    yield from _each("WRONG_COUNT", (WEIGHTED,), all_but(NO_STATIC_GRAPH), Named(worst=IN_A_STEP))
    # The engines with shards take no optimizer of what isn't in the model.
    sharding = [name for name in ALL if name not in all_but(OWN_SHARDS)]
    yield from _each("DEAD_PARAMETERS", (FULL,), sharding, Named("raises", "other"))
    for fault in SPOILT:
        named = Named(signature="checkpoint-differs" if fault == "STALE_TENSOR" else "checkpoint-lacks", worst="")
        yield from _each(fault, SAVED, all_but(NO_MESH), replace(named, detail=UP_PROJECTION))
    alone = [name for name in all_but(NO_PEERS | NO_MESH) if name not in DDP]
    yield from _each("ONE_RANK_SAVES", SAVED, [name for name in alone if name in GATHERED], HANGS_OR_DIES)
    yield from _each("ONE_RANK_SAVES", SAVED_BY_ALL, [name for name in alone if name not in GATHERED], HANGS_OR_DIES)
    # DDP's saving waits for no rank, and the checkpoint lacks what the other one resumes from.
    lacks = Named(signature="checkpoint-lacks", detail=r"random_states_1\.pkl")
    yield from _each("ONE_RANK_SAVES", (RESUMED,), DDP, lacks)
    for fault in RESUMING:
        after = Named(signature="resumed-differs", detail="^after resuming: ")
        # Other rows may come in the first half already, whose steps are then called wrong by themselves.
        named = Named(signature=".*") if fault == "DATA_FROM_THE_START" else after
        yield from _each(fault, (FULL,), SUBSET, named, life="resumed")


def _each(
    fault: str,
    scenarios: Sequence[Scenario],
    names: Iterable[str],
    named: Named,
    precision: str = "fp32",
    life: str = "straight",
) -> Iterator[Planted]:
    for name in names:
        yield Planted(replace(cell(first_training(scenarios, name), name, precision), life=life), fault, named)


@functools.cache
def first_training(scenarios: Sequence[Scenario], strategy: str) -> Scenario:
    """The first of several scenarios that is known to train under a strategy; raises LookupError without one."""
    if len(scenarios) == 1:
        return scenarios[0]
    for scenario in scenarios:
        failure, asked = loading.failures()[scenario[0]], cell(scenario, strategy)
        answer = expected.expect(expected.rules(failure), asked, measured.pinned())
        if rules.possible(asked, failure.variant(asked.variant)) and answer.outcome == "trains":
            return scenario
    raise LookupError(f"none of {scenarios} trains under {strategy}: add one that does, or exclude it with a reason")


def cell(scenario: Scenario, strategy: str, precision: str = "fp32") -> Cell:
    """A cell of as many ranks as its strategy usually has."""
    return Cell(*scenario, strategy, precision=precision, world_size=strategies.usual_ranks(strategy))
