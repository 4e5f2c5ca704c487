"""Claims judged where their failure shows: in a run, or by the rules of an older stack if today's can't tell."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from faultline import claims, known, report
from faultline.catalogue import Claim, Failure
from faultline.claims import Verdict
from faultline.results import Result
from faultline.stacks import TODAY


@dataclass(frozen=True)
class Judged:
    """A claim's verdict, what the cells do that say most of it, and on which stacks if these aren't the run's."""

    verdict: Verdict
    where: tuple[str, ...]
    stacks: tuple[str, ...] = ()


def stack(failure: Failure, claim: Claim) -> str:
    """The stack whose broken cells put a claim to the test: the older one of an upgrade, or if today's can't tell."""
    if not failure.reported:
        return TODAY
    if "stack" in claim.swap or claims.verdict(failure, claim, known.outcomes(failure)).word == "untested":
        return failure.reported.stack
    return known.shown_on(failure)


def by_rules(failure: Failure, claim: Claim) -> Verdict:
    """How a claim fares on the stack that shows the failure, as the rules have it."""
    there = stack(failure, claim)
    others = known.outcomes(failure, claim.swap.get("stack", there))
    return claims.verdict(failure, claim, known.outcomes(failure, there), others)


def in_run(failure: Failure, results: Collection[Result]) -> dict[str, Judged]:
    """Each claim's verdict in a run, or by the rules where it takes another stack than today's."""
    observed = report.outcomes(results)
    found = {}
    for key, verdict in report.verdicts(failure, results).items():
        there = stack(failure, verdict.claim)
        if there == TODAY:
            found[key] = Judged(verdict, tuple(report.where(failure, verdict, observed)))
            continue
        ruled, instead = by_rules(failure, verdict.claim), verdict.claim.swap.get("stack", there)
        told = report.where(failure, ruled, known.outcomes(failure, instead))
        found[key] = Judged(ruled, tuple(told), tuple(dict.fromkeys((there, instead))))
    return found
