"""Specs and faults by chance: what a seed and a number give is the same everywhere."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from faultline import strategies
from lab.programs import fault as faults
from lab.programs import refusals
from lab.programs.fault import Fault
from lab.programs.spec import VALUES, Spec, blocks, digest

SHARE = 0.12  # of the features that a spec has: with more, one that an engine refuses hides all others
FACTORS = (0.25, 0.5, 2.0, 3.0)
TRIES = 200


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


def sensible(spec: Spec) -> Spec:
    """The spec without features that say nothing together with others."""
    plain: dict[str, Any] = {}
    if spec.layers == 1 or spec.tied == "blocks":
        plain["shared"] = False
    if spec.layers == 1 and spec.tied == "blocks":
        plain["tied"] = "nothing"
    if spec.sparse and spec.tied == "head":
        plain["tied"] = "nothing"  # the gradients of both uses can't be added in one process either
    if spec.no_grad == "part":  # of which something has to train, and whose input gets no gradient
        plain |= {"twice": False}
        plain |= {"frozen": "nothing"} if spec.frozen == "first" else {}
        plain |= {"checkpoint": "none"} if spec.checkpoint == "reentrant" else {}
    if spec.container == "sequence":  # which is called as a whole
        plain |= {"calls": 1, "checkpoint": "none"}
    if spec.dtype == "complex":
        plain["shape"] = "usual"  # which engines refuse together, and each by itself
    if spec.linear_units:  # of which some would be gathered, and others not
        plain["method"] = "forward"
    if spec.frozen == "biases" and spec.hook == "parameter":
        plain["hook"] = "none"  # it is a bias's
    if spec.method == "block":
        plain["checkpoint"] = "none"
    if spec.checkpoint == "reentrant" and spec.no_grad != "part":
        # It takes no gradient of a gradient, and sees no tensor in a dictionary.
        plain |= {"twice": False, "frozen": "nothing" if spec.frozen == "first" else spec.frozen, "output": "tensor"}
    if spec.checkpoint != "none" and spec.state == "batchnorm":
        plain["state"] = "none"
    return replace(spec, **plain)


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


def under(names: Sequence[str] = ()) -> tuple[str, ...]:
    """The strategies of a proof: the usual ones that have several ranks."""
    return tuple(names) or tuple(name for name in strategies.usual_names() if strategies.distributed(name))
