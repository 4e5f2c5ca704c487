"""Verdicts on claims by the results of a run."""

from collections.abc import Collection, Iterable

from faultline.base.packages import TODAY
from faultline.catalogue import Failure
from faultline.cells import claims
from faultline.cells.claims import Verdict
from faultline.observations import verdicts as judging
from faultline.observations.verdicts import Judged, stack
from faultline.runs.results import Result, outcomes


def in_run(failure: Failure, results: Collection[Result]) -> dict[str, Judged]:
    """Each claim's verdict in a run, or by what was measured before where it takes another stack than today's."""
    observed = outcomes(results)
    judged = {}
    for key, verdict in verdicts(failure, results).items():
        if stack(failure, verdict.claim) == TODAY:
            judged[key] = Judged(verdict, tuple(judging.where(failure, verdict, observed)))
        else:
            judged[key] = judging.on_record(failure, verdict.claim)
    return judged


def verdicts(failure: Failure, results: Iterable[Result]) -> dict[str, Verdict]:
    """Each claim's verdict; results of variants that the failure no longer has say nothing."""
    known = {variant.name for variant in failure.variants}
    observed = outcomes(r for r in results if r.cell.failure == failure.name and r.cell.variant in known)
    return {key: claims.verdict(failure, claim, observed) for key, claim in failure.claims.items()}
