"""Programs with a fault in them, which nothing in the program hides."""

import random
from dataclasses import replace

from lab.programs import fault as faults
from lab.programs.drawing import sensible
from lab.programs.fault import Fault
from lab.programs.program import Program
from lab.programs.sampling import seeded
from lab.programs.spec import Spec

HIDING = {"adapter", "silent", "optimizer", "clip", "backward", "around", "begins", "precision"}
"""Features beside which some faults change nothing."""
OF_A_LOOP = ("rows", "stale")
"""Faults that take a loop: a trainer's rows are its sampler's, and accelerate steps DeepSpeed within `backward`."""
INSIDE = "inside"
"""Where transformers' Trainer has the model, as it is given one that has its loss."""


def planted(program: Program, choose: random.Random) -> tuple[Program, Fault]:
    """A program with a fault in it, and without what would hide it."""
    alone = program.training.world_size == 1  # whose rank is not the one at fault
    hiding = HIDING | ({"world_size"} if alone else set())
    program = sensible(program.with_only(name for name, _ in program.chosen if name not in hiding))
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
