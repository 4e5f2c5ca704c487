"""Claims and remedies as commands list them: their verdicts by the results of a run, and rows of them."""

from collections.abc import Iterable

from faultline.base.packages import TODAY
from faultline.base.text import count
from faultline.catalogue import Claim, Failure
from faultline.cells import claims
from faultline.cells.claims import Outcomes, Verdict
from faultline.observations import remedies
from faultline.observations.remedies import Fate, Judged, tested_on


def judge_in_run(failure: Failure, observed: Outcomes) -> dict[str, Judged]:
    """Each claim's verdict by what cells did in a run, or by what was measured before where it takes another stack than
    today's."""
    judged = {}
    for key, verdict in verdicts_in_run(failure, observed).items():
        if tested_on(failure, verdict.claim) == TODAY:
            judged[key] = Judged(verdict, tuple(remedies.describe_outcomes(failure, verdict, observed)))
        else:
            judged[key] = remedies.judge_claim(failure, verdict.claim)
    return judged


def verdicts_in_run(failure: Failure, observed: Outcomes) -> dict[str, Verdict]:
    """Each claim's verdict; what variants did that the failure no longer has says nothing."""
    known = {variant.name for variant in failure.variants}
    cells = {cell: did for cell, did in observed.items() if cell.failure == failure.name and cell.variant in known}
    return {key: claims.verdict(failure, claim, cells) for key, claim in failure.claims.items()}


ORDER = ("verified", "conditional", "refuted")
DETECTS = "detects"  # the kind of a claim of something that shows a failure beforehand


def remedy_rows(fates: Iterable[Fate], whose: str = "") -> list[tuple[str, str, str]]:
    """The verdict, the remedy and how many cells support it, the remedies that help first; `whose` cells these are."""

    def row(fate: Fate) -> tuple[str, str, str]:
        return fate.word, claim_in_words(fate.claim), _did(fate, whose)

    return [row(fate) for fate in sorted(fates, key=lambda fate: (ORDER.index(fate.word), fate.claim.kind != "helps"))]


def claim_in_words(claim: Claim) -> str:
    """A claim in words; of one that no remedy is, what it says that something does."""
    return f"shows it beforehand: {claim.text}" if claim.kind == DETECTS else claim.text


def rows_with_checks(fates: Iterable[Fate], whose: str = "") -> list[tuple[str, str, str]]:
    """As `rows`, with a label of its own for what only shows the failure, and so is no remedy."""
    every = [*fates]
    checks = sorted((fate for fate in every if fate.claim.kind == DETECTS), key=lambda fate: ORDER.index(fate.word))
    return remedy_rows((fate for fate in every if fate not in checks), whose) + [
        ("misses it" if fate.word == "refuted" else "how to check", fate.claim.text, _did(fate, whose))
        for fate in checks
    ]


def _did(fate: Fate, whose: str) -> str:
    return "; ".join((f"{fate.speak_for} of {count(fate.cells, 'cell')}{whose}", *fate.against))
