"""Specs and faults by chance, and faults that a spec or a program can have, of which nothing in it hides one."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from faultline import strategies
from lab.programs import drawing, refusals
from lab.programs import fault as faults
from lab.programs.fault import Fault
from lab.programs.program import Program
from lab.programs.spec import VALUES, Spec, blocks, digest, sensible

SHARE = 0.12  # of the features that a spec has: with more, one that an engine refuses hides all others
FACTORS = (0.25, 0.5, 2.0, 3.0)
TRIES = 200
HIDING = {"adapter", "silent", "optimizer", "clip", "backward", "around", "begins", "precision"}
"""Features beside which some faults change nothing."""
OF_A_LOOP = ("rows", "stale")
"""Faults that take a loop: a trainer's rows are its sampler's, and accelerate steps DeepSpeed within `backward`."""
INSIDE = "inside"
"""Where transformers' Trainer has the model, as it is given one that has its loss."""


@dataclass(frozen=True)
class Case:
    """A spec, healthy or with one fault in it; its name is another one where a newer sampler makes another case."""

    name: str
    spec: Spec
    fault: Fault | None = None


def case(name: str, spec: Spec, fault: Fault | None = None) -> Case:
    """A case whose name ends with a digest of what it is."""
    content = spec.digest if not fault else digest(spec.to_json() + fault.to_json())
    return Case(f"{name}-{content}", spec, fault)


def healthy(seed: int, number: int) -> Case:
    """One healthy case."""
    return case(f"healthy-{seed}-{number:04}", sample(random.Random(f"healthy/{seed}/{number}")))


def faulty(seed: int, number: int, under: Sequence[str]) -> Case:
    """One case with a fault, of a spec that trains under one of these strategies at least."""
    choose = random.Random(f"faulty/{seed}/{number}")
    kinds = [*faults.KINDS]
    kind = kinds[number % len(kinds)]
    for _ in range(TRIES):
        spec = sample(choose)
        fault = seeded(kind, spec, choose)
        if fault and any(refusals.injectable(spec, fault, name) for name in under):
            return case(f"faulty-{seed}-{number:04}", spec, fault)
    raise LookupError(f"no spec of {TRIES} can have a fault of kind {kind}")


def sample(choose: random.Random) -> Spec:
    """A spec in which a share of the features is on, each with any of its values."""
    spec = Spec(seed=choose.randrange(1000))
    for name, values in VALUES.items():
        if choose.random() < SHARE:
            spec = replace(spec, **{name: choose.choice(values[1:])})
    return sensible(spec)


def seeded(kind: str, spec: Spec, choose: random.Random) -> Fault | None:
    """A fault of a kind that a spec can have, None where it can't."""
    step = choose.randint(1, 3)
    if kind == "untied":
        return Fault(kind, "head") if spec.tied == "head" and spec.frozen == "nothing" else None
    if kind == "buffer":
        return Fault(kind, "offset") if spec.buffer != "none" else None
    if kind in faults.OF_WEIGHT:
        modules = weights(spec)
        step = step if kind in ("factor", "row", "lost", "nan") else 1
        times = choose.choice(FACTORS) if kind == "factor" else 1.0
        return Fault(kind, choose.choice(modules), step, times) if modules else None
    if kind in ("loss", "rate"):
        return Fault(kind, times=choose.choice(FACTORS))
    return Fault(kind, step=max(step, 2) if kind == "momentum" else step)


def weights(spec: Spec) -> list[str]:
    """The linear layers whose weight trains, is called once and belongs to nobody else."""
    inner = [f"{name}.layer" for name in blocks(spec)]
    if spec.state == "batchnorm":
        inner = []  # of a rank's two rows it makes 1 and -1, so that its part of a gradient may be as small as rounding
    if spec.tied == "blocks":
        inner = inner[2:]
    if spec.shared and spec.layers > 1:
        inner = inner[1:]
    if spec.frozen == "block" and not (spec.shared and spec.layers > 1):
        inner = inner[:-1]
    first = ["first"] if spec.frozen != "first" and spec.no_grad != "part" else []
    head = ["head"] if spec.tied != "head" and spec.loss != "weight penalty" else []
    return [*first, *inner, *head]


def planted(program: Program, choose: random.Random) -> tuple[Program, Fault]:
    """A program with a fault in it, and without what would hide it."""
    alone = program.training.world_size == 1  # whose rank is not the one at fault
    hiding = HIDING | ({"world_size"} if alone else set())
    program = drawing.sensible(program.with_only(name for name, _ in program.chosen if name not in hiding))
    while True:
        if fault := of_kind(choose.choice([*faults.KINDS]), program, choose):
            return program, fault


def of_kind(kind: str, program: Program, choose: random.Random) -> Fault | None:
    """A fault of a kind, None where a program can't have it."""
    if kind in OF_A_LOOP and "through" in program.features and (program.trainer or kind == "stale"):
        return None
    if program.in_trl:
        return _in_trl(kind, program, choose)
    fault = seeded(kind, program.spec, choose)
    if fault and fault.module and program.trainer:
        return replace(fault, module=f"{INSIDE}.{fault.module}")
    return fault


def _in_trl(kind: str, program: Program, choose: random.Random) -> Fault | None:
    """The same in a model of transformers, which has modules of other names, and no buffer that moves."""
    spec = program.spec
    fault = seeded(kind, Spec(tied=spec.tied, frozen=spec.frozen if kind == "untied" else "nothing"), choose)
    if not fault or not fault.module:
        return fault
    if kind == "untied":
        return replace(fault, module="lm_head")
    layers = range(1 if spec.frozen == "block" else 0, spec.layers)  # of which the first is the frozen one
    if not layers:
        return None
    return replace(fault, module=f"model.layers.{choose.choice(layers)}.self_attn.o_proj")


def under() -> tuple[str, ...]:
    """The strategies of a proof: the usual ones that have several ranks."""
    return tuple(name for name in strategies.usual_names() if strategies.distributed(name))
