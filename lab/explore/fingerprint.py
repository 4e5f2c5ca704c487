"""What a difference is called: how it shows, and where in the model first."""

import re
from collections.abc import Mapping
from fractions import Fraction
from math import isclose

from faultline.catalogue.outcomes import Outcome, Signature
from faultline.observations.wording import normalised
from faultline.runs.results import Result

PARTS = (1, 2, 3, 4, 6, 8)  # of a factor: products of world sizes and micro-batches, and of nothing else
CLOSE = {"fp32": 1e-3, "bf16": 1e-2}  # to such a factor: what else one is near to says nothing
SHOWN = 60  # letters of an error by which it is known again while its sizes and names change
KINDS: Mapping[str, str] = {
    Signature.UNMOVED: "never moved",
    Signature.RANKS_DIFFER: "ranks differ",
    Signature.BUFFERS_APART: "buffers differ",
    Signature.START_DIFFERS: "starts otherwise",
    Signature.NAN: "not a number",
}


def alike(result: Result) -> tuple[str, str, str]:
    """What two results have in common that show the same difference: an error's words, or a kind without a factor."""
    raises = result.outcome == Outcome.RAISES
    words = normalised(result.detail)[:SHOWN] if raises else kind(result).partition(" by ")[0]
    return result.outcome, result.signature, words


def exact(result: Result) -> tuple[object, ...]:
    """What two runs of one case have in common that did the same: the factor and where it shows first, too."""
    return (*alike(result), kind(result), role(result)) if silent(result) else alike(result)


def kind(result: Result) -> str:
    """``scaled by 0.75``, ``never moved``, ``raises AssertionError``: the kind of a difference, in words."""
    if result.outcome == Outcome.RAISES:
        return f"raises {result.detail.partition(':')[0]}"
    if result.outcome != Outcome.DIVERGES:
        return str(result.outcome)
    if factor := result.finding.factor:
        parts = Fraction(factor.times).limit_denominator(max(PARTS))
        whole = parts.numerator in PARTS and parts.denominator in PARTS and parts != 1
        if whole and isclose(parts, factor.times, rel_tol=CLOSE[result.cell.precision]):
            return f"scaled by {factor.times:.3g}"
    return KINDS.get(result.signature, "differs")


def silent(result: Result) -> bool:
    """Whether nothing is raised: training goes on, and is wrong."""
    return result.outcome in (Outcome.DIVERGES, Outcome.MISPLACED)


def role(result: Result) -> str:
    """The part of the model in which a result first differs, whichever block it is; empty where that isn't known."""
    first = result.finding.first
    return re.sub(r"\d+", "N", f"{first.phase} {first.module}".strip()) if first else ""
