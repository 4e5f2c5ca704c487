"""What every engine is known to do with a spec: trains, or refuses a feature in words of its own."""

import re

from faultline import strategies
from faultline.catalogue.outcomes import Outcome
from faultline.strategies import Holds
from lab.programs.fault import Fault
from lab.programs.rules import RULES, Rule
from lab.programs.spec import Spec


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
    alike = fault.kind == "bit" and strategies.holds(strategy) == Holds.SHARDS  # ranks gather the same shards
    mended = fault.kind == "buffer" and strategies.family(strategy).broadcasts_buffers
    return not known(spec, strategy) and not alike and not mended
