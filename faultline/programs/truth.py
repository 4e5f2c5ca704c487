"""What every engine is known to do with a spec: trains, or refuses a feature in words of its own."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome
from faultline.programs.fault import Fault
from faultline.programs.spec import Spec

SHARDED = ("zero3", "fsdp1-full", "fsdp2")
"""Where ranks gather the same shards, and so can't hold different weights."""


@dataclass(frozen=True)
class Rule:
    """Features that together make an engine do something else than train, and the words by which that is known."""

    where: Mapping[str, Any]
    strategies: tuple[str, ...]
    outcome: Outcome
    words: str
    why: str

    def holds(self, spec: Spec, strategy: str) -> bool:
        """Whether a spec has all of the features, under one of the strategies."""
        wanted = ((getattr(spec, name), values) for name, values in self.where.items())
        return matches(strategy, self.strategies) and all(
            value in values if isinstance(values, tuple) else value == values for value, values in wanted
        )


def rule(strategies: str, words: str, why: str, outcome: Outcome = Outcome.RAISES, **where: Any) -> Rule:
    return Rule(where, tuple(strategies.split()), outcome, words, why)


RULES: Sequence[Rule] = ()


def known(spec: Spec, strategy: str) -> list[Rule]:
    """Why a spec does not train under a strategy; empty if it does. An error keeps all else from being seen."""
    rules = [each for each in RULES if each.holds(spec, strategy)]
    errors = [each for each in rules if each.outcome != Outcome.DIVERGES]
    return errors or rules


def agrees(spec: Spec, strategy: str, outcome: str, text: str) -> bool:
    """Whether an outcome, with its detail, is what is known of a healthy spec."""
    rules = known(spec, strategy)
    if not rules:
        return outcome == Outcome.TRAINS
    return any(outcome == each.outcome and re.search(each.words, text) for each in rules)


def injectable(spec: Spec, fault: Fault, strategy: str) -> bool:
    """Whether a fault can be seeded into a spec under a strategy: that trains, and its ranks can differ where they
    have to."""
    return not known(spec, strategy) and not (fault.kind == "bit" and strategy in SHARDED)
