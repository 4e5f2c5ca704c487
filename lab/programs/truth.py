"""What every engine is known to do with a spec: trains, or refuses a feature in words of its own."""

import re

from faultline.catalogue.outcomes import Outcome
from lab.programs.fault import Fault
from lab.programs.rules import RULES, Rule
from lab.programs.spec import Spec

SHARDED = ("zero3", "fsdp1-full", "fsdp2")
"""Where ranks gather the same shards, and so can't hold different weights."""

BROADCASTING = ("ddp",)
"""Where all ranks get the buffers of rank 0 before a forward pass."""


def known(spec: Spec, strategy: str) -> list[Rule]:
    """Why a spec does not train under a strategy; empty if it does. An error keeps all else from being seen."""
    rules = [each for each in RULES if each.holds(spec, strategy)]
    errors = [each for each in rules if each.outcome != Outcome.DIVERGES]
    return errors or rules


def agrees(spec: Spec, strategy: str, outcome: str, text: str) -> bool:
    """Whether an outcome, with its detail, is what is known of a healthy spec."""
    if not known(spec, strategy):
        return outcome == Outcome.TRAINS
    return bool(met(spec, strategy, outcome, text))


def met(spec: Spec, strategy: str, outcome: str, text: str) -> list[Rule]:
    """The rules that a spec's outcome, with its detail, is an example of."""
    return [each for each in known(spec, strategy) if outcome == each.outcome and re.search(each.words, text)]


def injectable(spec: Spec, fault: Fault, strategy: str) -> bool:
    """Whether a fault can be seeded into a spec: its strategy trains it, and ranks can differ where they have to."""
    mended = (fault.kind == "bit" and strategy in SHARDED) or (fault.kind == "buffer" and strategy in BROADCASTING)
    return not known(spec, strategy) and not mended
