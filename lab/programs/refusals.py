"""What every engine is known to do with features other than to train them, from refusals.toml."""

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline import strategies as engines
from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome
from faultline.catalogue.recognition import SHARDED
from faultline.strategies import Holds
from lab.programs.fault import Fault
from lab.programs.settings import SETTINGS
from lab.programs.spec import Spec


@dataclass(frozen=True)
class Rule:
    """Features that together make an engine do something else than train, the words by which that is known, and why.

    `failure` is that of the catalogue, if it has one of the kind, and `also` another one that it may be called.
    """

    strategies: tuple[str, ...]
    where: Mapping[str, Any]
    outcome: str = Outcome.RAISES
    words: str = ""
    why: str = ""
    failure: str = ""
    also: str = ""

    def holds(self, value: Callable[[str], Any], strategy: str) -> bool:
        """Whether the values of features are those of the rule, under one of its strategies."""
        return matches(strategy, self.strategies) and has(self.where, value)


@dataclass(frozen=True)
class Refusal:
    """Words by which engines refuse something, and the package's file that raises them or an upstream report.

    `setting` is what alone leads to it.
    """

    strategies: tuple[str, ...]
    words: str
    file: str = ""
    report: str = ""
    setting: str = ""


def has(where: Mapping[str, Any], value: Callable[[str], Any]) -> bool:
    """Whether the values of features are the wanted ones, or among them where there are several."""
    return all(
        value(name) in wanted if isinstance(wanted, list | tuple) else value(name) == wanted
        for name, wanted in where.items()
    )


def _rows(name: str) -> Iterator[dict[str, Any]]:
    words = TABLE["words"] | {"sharded": f"(?i:{SHARDED.pattern})"}
    for row in TABLE[name]:
        changed = {"words": words.get(row["words"], row["words"])} if "words" in row else {}
        yield row | changed | {"strategies": tuple(row["strategies"].split())}


def _rules(name: str) -> Iterator[Rule]:
    """The rules of a table; a setting of any trainer gives one for each that has it."""
    for row in _rows(name):
        of_any = next((key for key in row["where"] if key.startswith("*.")), "")
        for key in [key for key in SETTINGS if key.endswith(of_any[1:])] if of_any else [""]:
            where = {key if name == of_any else name: wanted for name, wanted in row["where"].items()}
            yield Rule(**row | {"where": where})


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
MODEL: Sequence[Rule] = tuple(_rules("model"))
TRAINING: Sequence[Rule] = tuple(_rules("training"))
DOCUMENTED: Sequence[Refusal] = tuple(Refusal(**row) for row in _rows("documented"))
REPORTED: Sequence[Refusal] = tuple(Refusal(**row) for row in _rows("reported"))


def rules_for(spec: Spec, strategy: str) -> list[Rule]:
    """Why a spec does not train under a strategy; empty if it does. An error keeps all else from being seen."""
    rules = [each for each in MODEL if each.holds(lambda name: getattr(spec, name), strategy)]
    errors = [each for each in rules if each.outcome != Outcome.DIVERGES]
    return errors or rules


def agrees(spec: Spec, strategy: str, outcome: str, text: str) -> bool:
    """Whether an outcome, with its detail, is what is known of a healthy spec."""
    if not rules_for(spec, strategy):
        return outcome == Outcome.TRAINS
    return bool(matching_rules(spec, strategy, outcome, text))


def matching_rules(spec: Spec, strategy: str, outcome: str, text: str) -> list[Rule]:
    """The rules that a spec's outcome, with its detail, is an example of."""
    return [each for each in rules_for(spec, strategy) if outcome == each.outcome and re.search(each.words, text)]


def injectable(spec: Spec, fault: Fault, strategy: str) -> bool:
    """Whether a fault can be seeded into a spec: its strategy trains it, and ranks can differ where they have to."""
    alike = fault.kind == "bit" and engines.holds(strategy) == Holds.SHARDS  # ranks gather the same shards
    mended = fault.kind == "buffer" and engines.family(strategy).broadcasts_buffers
    return not rules_for(spec, strategy) and not alike and not mended
