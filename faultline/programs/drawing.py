"""Programs by chance: pairs of features that none had yet, then as many as a swarm gives."""

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from faultline.programs import fault as faults
from faultline.programs import spec as specs
from faultline.programs.fault import Fault
from faultline.programs.program import VALUES, Program
from faultline.programs.sampling import seeded
from faultline.programs.sampling import sensible as sensible_model
from faultline.programs.settings import SETTINGS

FEWEST, MOST = 2, 7
"""How many features a program has: with more, one that an engine refuses hides all others."""
TRIES = 20
SEEDS = 1000

Pair = frozenset[tuple[str, Any]]


def drawn(seed: int) -> Iterator[Program]:
    """Programs without end, each once: what a seed gives is the same everywhere.

    As long as there are pairs of values that no program had, each has one of them.
    """
    choose = random.Random(f"explore/{seed}")
    left = pairs()
    choose.shuffle(left)
    had: set[Pair] = set()
    seen: set[str] = set()
    while True:
        pair = next_of(left, had)
        for _ in range(TRIES):
            made = draw(choose, dict(pair) if pair else {})
            if not pair or set(pair) <= set(made.chosen):
                break
        had |= {frozenset(each) for each in combinations(made.chosen, 2)}
        if pair:
            had.add(frozenset(pair))  # or the two make no sense together
        if made.digest not in seen:
            seen.add(made.digest)
            yield made


def pairs() -> list[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Every two values of two features that one engine may have."""
    values = [(name, value) for name in VALUES for value in VALUES[name][1:]]
    return [
        (one, other) for one, other in combinations(values, 2) if one[0] != other[0] and _together(one[0], other[0])
    ]


def _together(one: str, other: str) -> bool:
    settings = [SETTINGS[name].family for name in (one, other) if name in SETTINGS]
    return len({*settings}) < 2


def next_of(left: list[tuple[tuple[str, Any], tuple[str, Any]]], had: set[Pair]) -> tuple[tuple[str, Any], ...] | None:
    """A pair that no program had yet, which is taken from the list; None where there is none left."""
    while left:
        pair = left.pop()
        if frozenset(pair) not in had:
            return pair
    return None


def draw(choose: random.Random, wanted: dict[str, Any]) -> Program:
    """A program with some features, and others of a random part of all: those of the rest stay plain."""
    swarm = choose.sample([*VALUES], len(VALUES) // 3)
    count = choose.randint(FEWEST, MOST)
    names = [name for name in swarm if name not in wanted][: max(0, count - len(wanted))]
    chosen = {name: choose.choice(VALUES[name][1:]) for name in names}
    return sensible(Program.of(choose.randrange(SEEDS), {**chosen, **wanted}))


def planted(program: Program, choose: random.Random) -> tuple[Program, Fault]:
    """A program with a fault in it, which nothing in the program hides."""
    hides = {"adapter", "silent", "optimizer", "clip", "backward"}
    program = sensible(program.with_only(name for name, _ in program.chosen if name not in hides))
    while True:
        fault = seeded(choose.choice([*faults.KINDS]), program.spec, choose)
        # Accelerate steps DeepSpeed's engine within `backward`, where nothing can be put back around it.
        if fault and not (fault.kind == "stale" and "through" in program.features):
            return program, fault


def sensible(program: Program) -> Program:
    """The program without features that say nothing together with others, or that no process trains."""
    before, program = program, _without(program)
    while before != program:
        before, program = program, _without(program)
    return program


def _without(program: Program) -> Program:
    values = program.features
    plain: set[str] = set()

    def has(name: str) -> Any:
        return name in values and name not in plain

    if values.get("dtype") == "bfloat16":  # an engine steps copies in fp32, and one process doesn't
        plain.add("dtype")
    if has("adapter"):
        plain |= {"method", "hook", "frozen", "no_grad", "sparse", "dtype", "shape", "unfreeze", "tied", "checkpoint"}
        plain |= {"loss"} if values.get("loss") == "weight penalty" else set()
    if not has("frozen"):
        plain.add("unfreeze")
    if not has("accumulate"):
        plain.add("accumulating")
    if has("teacher") or has("between"):
        plain |= {"state"}
    if has("through"):
        plain |= {name for name in values if name in SETTINGS and SETTINGS[name].family != "zero"}
        plain |= {"accumulating", "cleared"}
    model = sensible_model(program.with_only(name for name in values if name not in plain).spec)
    remaining = {name: value for name, value in values.items() if name not in plain and name not in specs.VALUES}
    return Program.of(program.seed, {**remaining, **model.features})
