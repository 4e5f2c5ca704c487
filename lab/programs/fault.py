"""The faults that are seeded into trainings: each kind in words, what it has to be called, how a rank is given it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from faultline.base.errors import UsageError
from faultline.catalogue.outcomes import Signature
from lab.programs.spec import digest


@dataclass(frozen=True)
class Kind:
    """A kind of fault in words, the signature that it has to be called by, and the phase in which it is seen first."""

    words: str
    signature: str = Signature.DIFFERS
    phase: str = ""


KINDS: Mapping[str, Kind] = {
    "factor": Kind("the gradient of one weight is multiplied on every rank", phase="backward"),
    "row": Kind("the last row of one weight's gradient is lost on every rank", phase="backward"),
    "lost": Kind("what one rank brings to one weight's gradient is lost", phase="backward"),
    "nan": Kind("one rank's gradient of one weight is not a number", Signature.NAN),
    "zero": Kind("one weight never gets a gradient", Signature.UNMOVED),
    "frozen": Kind("one weight doesn't train", Signature.UNMOVED),
    "start": Kind("training starts with another weight", Signature.START_DIFFERS, "start"),
    "loss": Kind("the loss is multiplied on every rank"),
    "rows": Kind("one rank trains on another step's rows", phase="forward"),
    "unreduced": Kind("gradients are not reduced", phase="backward"),
    "rate": Kind("the learning rate is multiplied on every rank"),
    "momentum": Kind("the optimizer loses its momentum", phase="update"),
    "skipped": Kind("one rank's optimizer leaves a step out", phase="update"),
    "stale": Kind("one rank's weights are put back after a step", phase="update"),
    "bit": Kind("one rank's weights differ in one bit", Signature.RANKS_DIFFER),
    "buffer": Kind("one rank starts with another buffer", Signature.START_DIFFERS),
    "untied": Kind("a tied weight comes apart"),
}
"""The faults that models and programs made from a spec can have."""
OF_WEIGHT = ("factor", "row", "lost", "nan", "zero", "frozen", "start")
IN_CELLS: Mapping[str, str] = {
    "share": "one rank's loss is multiplied in one step",
    "micro-batch": "the loss of a step's first micro-batch is multiplied",
    "world size": "the loss is multiplied by the number of ranks",
    "bypassed": "every rank calls the model inside DDP: the mistake by which people lose the reduction",
    "one unreduced": "one rank's gradients are not reduced",
    "apart": "nothing is reduced between nodes",
    "other order": "one rank trains on the rows of the steps in another order",
    "same rows": "all ranks train on the same rows",
    "own mean": "each rank takes the mean over its own tokens, which are not as many as its peers'",
    "own count": "a micro-batch is divided by its own tokens, by a loss that divides by those of the step",
    "first rows": "the rows of a life that is resumed are those of one that has just begun",
    "dead": "the optimizer has copies of the parameters, as one that was made too early holds them",
    "dead shards": "the optimizer inside an engine, which hands it its shards anew for each step, steps copies of them",
    "drift": "one rank's weights are off by a hundred-thousandth",
    "nan weight": "one of a rank's weights is not a number",
    "one saves": "one rank goes on with training while its peers save",
    "missing": "a saved tensor is missing",
    "empty": "a saved tensor is empty",
    "stale tensor": "a saved tensor is off by a hundred-thousandth",
    "schedule": "the learning rate is that of the beginning after resuming",
    "torch draws anew": "after resuming, torch draws other random numbers",
    "python draws anew": "after resuming, Python draws other random numbers",
    "numpy draws anew": "after resuming, numpy draws other random numbers",
    "mesh": "other ranks are a node than the strategy means",
    # Changes that are none: another order of summation, and an error far below what a lost row makes.
    "interleaved": "rows 0 and 2 are on one rank, 1 and 3 on the other, as samplers deal them: the same global batch",
    "alternating": "the loss is off by so much, up and down by turns",
    "loaded twice": "what was loaded is in new tensors, and a random number was drawn whose drawing is undone",
}
"""The changes that cells of the matrix can have besides."""
FAULTY = 1
"""The rank at fault, where it is one."""
INJECT = Path(__file__).with_name("inject.py")


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, the module that it is about, the step (from 1) in which it strikes and a factor."""

    kind: str
    module: str = ""
    step: int = 1
    times: float = 1.0

    @property
    def words(self) -> str:
        """``factor of blocks.0.layer, 2 times, at step 1: the gradient of one weight is ...``."""
        of = f" of {self.module}" if self.module else ""
        times = f", {self.times:g} times" if self.times != 1 else ""
        words = KINDS[self.kind].words if self.kind in KINDS else IN_CELLS[self.kind]
        return f"{self.kind}{of}{times}, at step {self.step}: {words}"

    @property
    def injection(self) -> str:
        """By which a rank is given it (see `run.injection`)."""
        return f"{INJECT}:{self.to_json()}"

    @property
    def digest(self) -> str:
        """Short, and another one for any other fault."""
        return digest(self.to_json())

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def parse(text: str) -> Fault:
    """Read a fault back; raises UsageError for anything else."""
    try:
        fault = Fault(**json.loads(text))
    except (ValueError, TypeError):
        raise UsageError(f"not a fault: {text[:200]!r}") from None
    if fault.kind not in KINDS and fault.kind not in IN_CELLS:
        raise UsageError(f"not a fault: {text[:200]!r}")
    return fault
