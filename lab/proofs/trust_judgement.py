"""Whether a cell of a proof was judged rightly: what is known of its spec or fault, beside what was said."""

import math
import re

from faultline.catalogue.outcomes import Outcome
from faultline.check.known import recognised
from faultline.runs.results import Result
from lab.programs import refusals
from lab.programs.fault import FAULTY, KINDS, OF_WEIGHT, Fault
from lab.programs.sampling import Case

RIGHT, REFUSED, FALSE_ALARM, OTHERWISE, MISSED, MISNAMED, FAULT_OF_OURS = (
    *("right", "refused", "false alarm", "not as known", "missed", "misnamed", "fault of ours"),
)
CALLED, NOT_CALLED, WRONGLY_CALLED = "named", "without a name", "another name"
CLOSE = 0.02  # how far a factor may be from the one that was seeded


def judged(case: Case, entry: Result) -> str:
    """What the judgement of a cell is worth."""
    if entry.outcome == Outcome.INVALID or entry.out_of_time:
        return FAULT_OF_OURS
    if not case.fault:
        if refusals.agrees(case.spec, entry.cell.strategy, entry.outcome, text(entry)):
            return RIGHT if entry.outcome == Outcome.TRAINS else REFUSED
        return OTHERWISE if refusals.rules_for(case.spec, entry.cell.strategy) else FALSE_ALARM
    if entry.outcome == Outcome.TRAINS:
        return MISSED
    return RIGHT if names(case.fault, entry) else MISNAMED


def called(case: Case, entry: Result) -> str:
    """Whether `check` names the failure that a healthy spec is known to meet, or another one.

    It is empty where the spec trains, or what it meets is in no catalogue and has no name.
    """
    if case.fault or judged(case, entry) != REFUSED:
        return ""
    rules = refusals.matching_rules(case.spec, entry.cell.strategy, entry.outcome, text(entry))
    expected = {name for each in rules for name in (each.failure, each.also) if name}
    named = names_given(entry)
    if named & expected:
        return CALLED
    return WRONGLY_CALLED if named else NOT_CALLED if expected else ""


def names_given(entry: Result) -> set[str]:
    """The known failures that `check` says a cell has, or may have."""
    match, others = recognised(entry)
    return {each.failure.name for each in (match, *others) if each}


def text(entry: Result) -> str:
    """All that a cell says, its ranks' errors included."""
    return "\n".join([entry.detail, *entry.finding.words, *(each.error.message for each in entry.ranks if each.error)])


def names(fault: Fault, entry: Result) -> bool:
    """Whether a finding has the fault's kind, and its weight, step, rank or factor."""
    if entry.outcome != Outcome.DIVERGES or entry.signature != KINDS[fault.kind].signature:
        return False
    weight, finding = f"{fault.module}.weight", entry.finding
    if fault.kind in ("loss", "rate"):
        kind = "gradients" if fault.kind == "loss" else "weights"
        factor = finding.factor
        return bool(factor and factor.kind == kind and math.isclose(factor.times, fault.times, rel_tol=CLOSE))
    if fault.kind in ("zero", "frozen"):
        return weight in finding.unmoved
    if fault.kind == "untied":
        return any(weight in group for group in entry.checked.apart)
    if fault.kind == "buffer":
        return fault.module in finding.apart
    if fault.kind == "bit":
        return True
    if fault.kind == "nan":
        return bool(re.search(rf"\b{re.escape(weight)} at step {fault.step}\b", entry.detail))
    first = finding.first
    if not first or first.phase != KINDS[fault.kind].phase or (fault.kind == "rows" and first.rank != FAULTY):
        return False
    step = 0 if fault.kind == "start" else fault.step
    return first.step == step and (fault.kind not in OF_WEIGHT or first.parameter == weight)
