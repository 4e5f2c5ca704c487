"""A fault that is seeded into a training, and what has to be said of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from faultline.base.errors import UsageError
from lab.programs.spec import digest

KINDS: Mapping[str, str] = {
    "factor": "the gradient of one weight is multiplied on every rank",
    "row": "the last row of one weight's gradient is lost on every rank",
    "lost": "what one rank brings to one weight's gradient is lost",
    "nan": "one rank's gradient of one weight is not a number",
    "zero": "one weight never gets a gradient",
    "frozen": "one weight doesn't train",
    "start": "training starts with another weight",
    "loss": "the loss is multiplied on every rank",
    "rows": "one rank trains on another step's rows",
    "unreduced": "gradients are not reduced",
    "rate": "the learning rate is multiplied on every rank",
    "momentum": "the optimizer loses its momentum",
    "skipped": "one rank's optimizer leaves a step out",
    "stale": "one rank's weights are put back after a step",
    "bit": "one rank's weights differ in one bit",
    "buffer": "one rank starts with another buffer",
    "untied": "a tied weight comes apart",
}
"""What each kind of fault is, in words."""
OF_WEIGHT = ("factor", "row", "lost", "nan", "zero", "frozen", "start")
FAULTY = 1
"""The rank at fault, where it is one."""


@dataclass(frozen=True)
class Fault:
    """One fault: its kind, the module whose weight it is about, the step (from 1) in which it strikes and a factor."""

    kind: str
    module: str = ""
    step: int = 1
    times: float = 1.0

    @property
    def words(self) -> str:
        """``factor of blocks.0.layer, 2 times, at step 1: the gradient of one weight is ...``."""
        of = f" of {self.module}" if self.module else ""
        times = f", {self.times:g} times" if self.times != 1 else ""
        return f"{self.kind}{of}{times}, at step {self.step}: {KINDS[self.kind]}"

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
    if fault.kind not in KINDS:
        raise UsageError(f"not a fault: {text[:200]!r}")
    return fault
