"""What is known of a difference: a failure of the catalogue, a refusal that an engine documents, an earlier finding."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from faultline.base import packages
from faultline.base.paths import ROOT
from faultline.base.text import matches
from faultline.catalogue.outcomes import Outcome
from faultline.check import known as of_check
from faultline.observations import wording
from faultline.observations.matching import CERTAIN
from faultline.runs.results import Result
from lab.explore.case import Case
from lab.programs import refusals
from lab.programs.program import VALUES
from lab.programs.refusals import DOCUMENTED, MODEL, REPORTED, TRAINING
from lab.programs.settings import TRAINER

LONG = 20  # words of an error, such as a traceback's, that no other mistake leads to
FAILURE, REFUSAL, FEATURE, FINDING = "known failure", "documented refusal", "known of the feature", "earlier finding"
UPSTREAM = "known upstream"
SOURCES = {
    "accelerate": "https://github.com/huggingface/accelerate/blob/v{}/src/",
    "deepspeed": "https://github.com/deepspeedai/DeepSpeed/blob/v{}/",
    "safetensors": "https://github.com/huggingface/safetensors/blob/v{}/bindings/python/py_src/",
    "transformers": "https://github.com/huggingface/transformers/blob/v{}/src/",
}


@dataclass(frozen=True)
class Known:
    """What a difference is: its kind, and the failure, the address of the documentation or the finding."""

    kind: str
    name: str


@dataclass(frozen=True)
class Explains:
    """The features and strategies by which an earlier finding explains other cases on its device.

    Where it ended in an `error` whose text is long enough to be no other's, that error explains others there, too.
    """

    name: str
    features: tuple[tuple[str, Any], ...]
    strategies: tuple[str, ...]
    device: str = "cpu"
    error: str = ""

    def holds(self, case: Case) -> bool:
        """Whether it explains a case; what goes wrong in transformers' Trainer does in those that are built on it."""
        base = {("through", TRAINER)} if case.program.in_trl else set()
        return self._there(case) and {*self.features} <= base | {*case.program.chosen}

    def ended(self, case: Case, result: Result) -> bool:
        """Whether a case ended in its error, by another feature."""
        words = wording.normalised(self.error)
        told_apart = result.outcome == Outcome.RAISES and len(words.split()) >= LONG
        return told_apart and self._there(case) and wording.normalised(result.detail) == words

    def _there(self, case: Case) -> bool:
        return case.strategy in self.strategies and case.device == self.device


def together(earlier: Iterable[Explains]) -> list[dict[str, Any]]:
    """Features that are known to go wrong together: programs near them are drawn."""
    wheres: list[Mapping[str, Any]] = [each.where for each in (*MODEL, *TRAINING)]
    wheres += [dict(each.features) for each in earlier]
    every = [{name: _one(name, wanted) for name, wanted in where.items() if name in VALUES} for where in wheres]
    chosen = [{name: value for name, value in each.items() if value != VALUES[name][0]} for each in every]
    return [each for each in chosen if each]


def _one(name: str, wanted: Any) -> Any:
    """One of the values that a rule asks for, and none that is plain if there is another."""
    values = wanted if isinstance(wanted, list) else (wanted,)
    return next((value for value in values if value != VALUES[name][0]), values[0])


def by_features(case: Case, earlier: Iterable[Explains]) -> Known | None:
    """What is known of a case from its features alone: it isn't run, as what is known would hide all else."""
    if not case.program.in_trl and (of_model := refusals.rules_for(case.program.spec, case.strategy)):
        return Known(FEATURE, of_model[0].why)
    for rule in TRAINING:
        if rule.holds(case.program.value, case.strategy):
            return Known(FAILURE, rule.failure)
    return next((Known(FINDING, each.name) for each in earlier if each.holds(case)), None)


def refusal(case: Case, result: Result) -> Known | None:
    """What an engine documents of a case that it refuses, or what is reported of its error."""
    if result.outcome != Outcome.RAISES:
        return None
    for kind, table in ((REFUSAL, DOCUMENTED), (UPSTREAM, REPORTED)):
        for each in table:
            if matches(case.strategy, each.strategies) and re.search(each.words, result.detail):
                return Known(kind, each.report or source(each.file))
    return None


def source(file: str) -> str:
    """The address of a package's file at the release that is pinned."""
    package = file.partition("/")[0]
    return SOURCES[package].format(packages.pinned(ROOT / "requirements.txt")[package]) + file


def by_result(case: Case, result: Result, earlier: Iterable[Explains] = ()) -> Known | None:
    """What is known of a case's result: a refusal in documented words, a failure of the catalogue, or a finding."""
    if refused := refusal(case, result):
        return refused
    match, _ = of_check.recognised(result)
    # Others raise an error in the same words: those of a failure count if the model has what it is about.
    if match and (match.failure.recognition.model.any_of or match.sure == CERTAIN):
        return Known(FAILURE, match.failure.name)
    return next((Known(FINDING, each.name) for each in earlier if each.ended(case, result)), None)
