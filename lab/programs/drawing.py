"""Programs by chance: pairs of features that none had yet, then as many as a swarm gives."""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, count
from typing import Any

from lab.programs import refusals
from lab.programs import spec as specs
from lab.programs.program import VALUES, Program
from lab.programs.settings import ACCELERATE, SAMPLING, SETTINGS, TRAINER, TRAINERS, TRL

FEWEST, MOST = 2, 7
"""How many features a program has: with more, one that an engine refuses hides all others."""
TRIES = 20
NEAR, IN_TRL = 5, 6
SEEDS = 1000

Pair = frozenset[tuple[str, Any]]
ABOUT: Mapping[str, frozenset[str]] = {
    "zero": frozenset({"deepspeed"}),
    **dict.fromkeys(("ddp", "fsdp1", "fsdp2"), frozenset({"torch"})),
    ACCELERATE: frozenset({"accelerate"}),
    TRAINER: frozenset({"transformers", "accelerate"}),
    **dict.fromkeys(TRL, frozenset({"trl", "transformers"})),
    "through": frozenset({"accelerate", "transformers"}),
    "teacher": frozenset({"accelerate"}),
    "adapter": frozenset({"peft"}),
    **dict.fromkeys(("recompute", "checkpoint", "optimizer", "dtype", "sparse", "shape"), frozenset({"torch"})),
    **dict.fromkeys(("accumulate", "clip", "precision", "life"), frozenset({"deepspeed", "accelerate"})),
}
"""The packages that act on the settings of a family, or on another feature more than on the rest."""


def drawn(
    seed: int, known: Sequence[Mapping[str, Any]] = (), changed: Collection[str] = frozenset()
) -> Iterator[Program]:
    """Programs without end, each once: what a seed gives is the same everywhere.

    As long as there are pairs of values that no program had, each has one of them: first those that packages have a
    part in which have `changed`. But one of NEAR is a neighbour of the features that are `known` to go wrong together:
    one mechanism is often in several places. One of IN_TRL has a pair of a trainer of TRL, which takes longer to run.
    """
    choose = random.Random(f"explore/{seed}")

    def about(pair: Sequence[tuple[str, Any]]) -> int:
        return sum(not packages(name).isdisjoint(changed) for name, _ in pair)

    every = pairs()
    choose.shuffle(every)
    every.sort(key=about)  # taken from the end
    of_trl, others = ([pair for pair in every if _of_trl(pair) == wanted] for wanted in (True, False))
    had: set[Pair] = set()
    seen: set[str] = set()
    for number in count(1):
        if known and number % NEAR == 0:
            made = draw(choose, neighbour(choose, choose.choice(known)))
        else:
            first, second = (about(left[-1]) if left else -1 for left in (of_trl, others))
            turns = (of_trl, others) if (first, number % IN_TRL == 0) > (second, False) else (others, of_trl)
            made = _covering(choose, next_of(turns[0], had) or next_of(turns[1], had), had)
        if made.digest not in seen:
            seen.add(made.digest)
            yield made


def _covering(choose: random.Random, pair: tuple[tuple[str, Any], ...] | None, had: set[Pair]) -> Program:
    """A program with a pair of values, if there is one left; `had` gets the pairs that it has."""
    for _ in range(TRIES):
        made = draw(choose, dict(pair or ()))
        if not pair or set(pair) <= set(made.chosen):
            break
    had |= {frozenset(each) for each in combinations(made.chosen, 2)}
    if pair:
        had.add(frozenset(pair))  # or the two make no sense together
    return made


def neighbour(choose: random.Random, features: Mapping[str, Any]) -> dict[str, Any]:
    """Features of which one is left out, or has another value."""
    name = choose.choice([*features])
    others = [value for value in VALUES[name] if value != features[name]]
    return {**features, name: choose.choice(others)}


def pairs() -> list[tuple[tuple[str, Any], ...]]:
    """Every two values of two features that one engine may have."""
    values = [(name, value) for name in VALUES for value in VALUES[name][1:]]
    return [
        (one, other) for one, other in combinations(values, 2) if one[0] != other[0] and _together(one[0], other[0])
    ]


def needed(name: str) -> dict[str, Any]:
    """What a feature says nothing without, and what that needs."""
    features = {}
    while name in NEEDS:
        name, value = NEEDS[name]
        features[name] = value
    return features


def packages(name: str) -> frozenset[str]:
    """The packages that a feature is about, more than the others are."""
    return ABOUT.get(SETTINGS[name].family if name in SETTINGS else name, frozenset())


def _of_trl(pair: Iterable[tuple[str, Any]]) -> bool:
    return any(name in OF_TRL or value in TRL for name, value in pair)


def _together(one: str, other: str) -> bool:
    if any(name in OF_TRL and other in NOT_IN_TRL for name, other in ((one, other), (other, one))):
        return False
    families = {SETTINGS[name].family for name in (one, other) if name in SETTINGS}
    both = ({"zero", TRAINER}, {"zero", ACCELERATE}, {"ddp", ACCELERATE}, *({name, TRAINER} for name in TRL))
    return len(families) < 2 or families in both


def next_of(left: list[tuple[tuple[str, Any], ...]], had: set[Pair]) -> tuple[tuple[str, Any], ...] | None:
    """A pair that no program had yet, which is taken from the list; None where there is none left."""
    while left:
        pair = left.pop()
        if frozenset(pair) not in had:
            return pair
    return None


def draw(choose: random.Random, wanted: dict[str, Any]) -> Program:
    """A program with some features, and others of a random part of all: those of the rest stay plain."""
    wanted = {key: value for name in wanted for key, value in needed(name).items()} | dict(wanted)
    swarm = choose.sample([*VALUES], len(VALUES) // 3)
    size = choose.randint(FEWEST, MOST)
    names = [name for name in swarm if name not in wanted][: max(0, size - len(wanted))]
    chosen = {name: choose.choice(VALUES[name][1:]) for name in names}
    return sensible(Program.of(choose.randrange(SEEDS), {**chosen, **wanted}))


ENGINES = {key for key, setting in SETTINGS.items() if setting.family in ("ddp", "fsdp1", "fsdp2")}
"""Settings that a loop with torch's bare engine has."""
OF_ACCELERATE = {key for key, setting in SETTINGS.items() if setting.family == ACCELERATE}
PASSED_ON = {
    *("ddp.bucket_cap_mb", "ddp.gradient_as_bucket_view", "fsdp2.reshard_after_forward"),
    *("fsdp1.forward_prefetch", "fsdp1.limit_all_gathers", "fsdp1.backward_prefetch"),
}
"""Settings of torch's engines that accelerate hands on as well."""
OF: Mapping[str, set[str]] = {
    name: {key for key, setting in SETTINGS.items() if setting.family == name} for name in TRAINERS
}
"""The settings of each trainer."""
OF_ALL_IN_TRL = {"checkpointing", "tokens"}
OF_TRL = {*OF_ALL_IN_TRL, *(key for name in TRL for key in OF[name])}

OF_WORKERS = ("prefetch_factor", "in_order")
OF_EVALUATION = ("eval_accumulation_steps", "eval_use_gather_object")
OTHERWISE = tuple(value for value in VALUES["between"] if value != "evaluation")

NEEDS: Mapping[str, tuple[str, Any]] = {
    **dict.fromkeys(OF_ACCELERATE, ("through", ACCELERATE)),
    "accumulating": ("accumulate", 2),
    "unfreeze": ("frozen", "block"),
    **dict.fromkeys(("spare_runs", "spare_frozen"), ("spare", True)),
    "tying": ("tied", "head"),
    **dict.fromkeys(OF_ALL_IN_TRL, ("through", "sft")),
    **{key: ("through", name) for name in TRAINERS for key in OF[name]},
    **{f"trainer.dataloader_{name}": ("trainer.dataloader_num_workers", 1) for name in OF_WORKERS},
    **{f"trainer.{name}": ("trainer.eval_on_start", True) for name in OF_EVALUATION},
}
"""What a feature says nothing without."""

NOT_IN_A_TRAINER = {
    *("optimizer", "schedule", "backward", "teacher", "unfreeze", "spare_runs", "around", "begins", "recompute"),
    *("silent", "rows", "branch", "joined", "swapped", "scaled", "checkpoint", "state", "twice"),
    "zero.stage3_param_persistence_threshold",
}
"""What a trainer does in a way of its own, what is by rank, and what leaves no evidence there."""
IN_BOTH = {"layers", "block", "tied", "frozen"}
NOT_IN_TRL = (specs.VALUES.keys() - IN_BOTH) | NOT_IN_A_TRAINER | {"tying", "spare_frozen"}
"""What the models of transformers don't have, and what their trainers don't do."""

SENSELESS: Sequence[tuple[Mapping[str, Any], set[str]]] = (
    ({"dtype": "bfloat16"}, {"dtype"}),  # an engine steps copies in fp32, and one process doesn't
    (
        {"adapter": "lora"},
        {"method", "hook", "frozen", "no_grad", "sparse", "dtype", "shape", "unfreeze", "tied", "checkpoint"},
    ),
    ({"adapter": "lora", "loss": "weight penalty"}, {"loss"}),
    ({"frozen": "nothing"}, {"unfreeze"}),
    ({"joined": (2, 3)}, {"state", "branch", "twice"}),  # whose penalty is no mean over rows
    ({"precision": "bf16", "teacher": ("copy", "prepared")}, {"teacher"}),
    ({"accumulate": 1}, {"accumulating"}),
    ({"branch": "rank"}, {"swapped"}),  # which part of the model a row meets is the rank's choice
    ({"spare": False}, {"spare_runs", "spare_frozen"}),
    ({"tied": ("nothing", "blocks")}, {"tying"}),
    ({"tying": "by hand"}, {"hook"}),
    ({"tying": "by hand", "loss": "weight penalty"}, {"loss"}),
    ({"spare_runs": ("at first", "later")}, {"spare_frozen"}),
    ({"teacher": ("copy", "prepared")}, {"state"}),
    ({"teacher": "prepared", "through": ("engine", *TRAINERS)}, {"teacher"}),
    ({"between": ("evaluation", "inference", "saving", "reloading", "generation")}, {"state"}),
    ({"recompute": ("last block", "every block")}, {"checkpoint", "state", "twice"}),
    # Buffers, and types of their own, are cast or stay by rules of each engine's own.
    ({"precision": "bf16"}, {"dtype", "sparse", "shape", "twice", "function", "state", "buffer"}),
    ({"world_size": (1, 4)}, {"rows", "branch", "silent", "swapped", "twice"}),
    # Each step has a smaller learning rate already, and the second half begins with what is frozen at first.
    ({"life": ("resumed", "resized")}, {"schedule", "unfreeze"}),
    ({"life": ("resumed", "resized"), "through": "accelerate"}, {"through"}),
    ({"life": "resized"}, {"branch", "rows", "state", "silent", "world_size", "twice"}),
    ({"through": ("engine", "accelerate")}, {*OF[TRAINER], *OF_TRL}),
    ({"through": (ACCELERATE, *TRAINERS)}, {"accumulating", "cleared", *(ENGINES - PASSED_ON)}),
    ({"through": TRAINERS}, PASSED_ON),
    ({"through": ("engine", *TRAINERS)}, OF_ACCELERATE),
    ({"trainer.dataloader_num_workers": 0}, {f"trainer.dataloader_{name}" for name in OF_WORKERS}),
    ({"trainer.eval_on_start": False, "between": OTHERWISE}, {f"trainer.{name}" for name in OF_EVALUATION}),
    ({"through": TRAINER}, {*NOT_IN_A_TRAINER, *OF_TRL}),
    *(({"through": name}, {*NOT_IN_TRL, *(OF_TRL - OF[name] - OF_ALL_IN_TRL)}) for name in TRL),
    ({"through": TRL, "block": ("norm", "attention", "convolution")}, {"block"}),
    ({"through": TRL, "block": "experts"}, {"layers", "tied"}),
    ({"through": TRL, "tied": "blocks"}, {"tied"}),
    # Which is what they count tokens by, and by which one process has the rows of all ranks.
    ({"through": TRL}, {"trainer.average_tokens_across_devices", "trainer.use_seedable_sampler"}),
    # Refused in one process too.
    ({"through": SAMPLING}, {"trainer.auto_find_batch_size", "trainer.dispatch_batches"}),
    ({"through": "reward"}, {"block", "tied"}),
    ({"through": SAMPLING}, {"tokens"}),
    ({"rloo.beta": 0.0}, {"rloo.sync_ref_model"}),
    ({"grpo.beta": 0.0}, {"grpo.sync_ref_model", "grpo.use_bias_correction_kl"}),
    ({"gmpo.beta": 0.0}, {"gmpo.sync_ref_model"}),
    ({"optimizer": "two", "through": "accelerate"}, {"optimizer"}),
    ({"optimizer": "two"}, {"schedule", "life", "adapter"}),
    ({"begins": "by rank"}, {"teacher", "adapter"}),
    ({"begins": "loaded"}, {"life", "adapter", "dtype", "shape", "state"}),
    ({"around": True}, {"method"}),
    ({"through": TRAINERS, "clip": "value"}, {"clip"}),
    ({"through": TRAINERS, "between": ("inference", "reloading")}, {"between"}),
    ({"through": ("engine", "accelerate", TRAINER, "reward"), "between": "generation"}, {"between"}),
)
"""Features, and those that say nothing together with them, or that no engine is to train beside them."""


def sensible(program: Program) -> Program:
    """The program without features that say nothing together with others, or that no process trains."""
    before, program = program, _without(program)
    while before != program:
        before, program = program, _without(program)
    return program


def _without(program: Program) -> Program:
    for where, without in SENSELESS:
        if not without.isdisjoint(program.features) and refusals.has(where, program.value):
            program = program.with_only(name for name, _ in program.chosen if name not in without)
    model = specs.sensible(program.spec)
    remaining = {name: value for name, value in program.chosen if name not in specs.VALUES}
    return Program.of(program.seed, {**remaining, **model.features})
