"""What pages list of the catalogue and its strategies, made from the records and their blessed rules."""

import re
from collections import Counter

from faultline import strategies
from faultline.base.markdown import headed, put, row
from faultline.base.paths import ROOT
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.explore import overview as of_findings
from faultline.observations import verdicts

README, CATALOGUE, MATRIX = ROOT / "README.md", ROOT / "docs" / "catalogue.md", ROOT / "docs" / "matrix.md"
COUNTS = "<!-- counts: begin -->", "<!-- counts: end -->"
FAILURES = "<!-- failures: begin -->", "<!-- failures: end -->"
STRATEGIES = "<!-- strategies: begin -->", "<!-- strategies: end -->"
VERDICTS = ("verified", "refuted", "conditional", "untested")


def rewrite() -> str:
    """Rewrite the tables and the figures, and report for each file whether it changed."""
    written = put(CATALOGUE, table, FAILURES), put(README, counts, COUNTS), put(MATRIX, families, STRATEGIES)
    return "\n".join((*written, of_findings.write()))


def counts() -> str:
    """The number of failures, and of claims by verdict, as a sentence."""
    words = Counter(
        verdicts.known(failure, claim).word for failure in failures().values() for claim in failure.claims.values()
    )
    by_verdict = ", ".join(f"{words[word]} {word}" for word in VERDICTS if words[word])
    return f"{len(failures())} failures and {words.total()} claims: {by_verdict}."


def families() -> str:
    """Markdown: each family of strategies on one line, as the first line of its file has it."""
    rows = [
        row((family.__doc__ or "").partition("\n")[0], ", ".join(f"`{name}`" for name in family.STRATEGIES))
        for family in sorted(strategies.families().values(), key=lambda family: family.ORDER)
    ]
    return "\n".join(headed(("family", "strategies"), rows))


def table() -> str:
    """Markdown: each failure on one line, with where it happens today, its fix and its first remedy."""
    head = ("failure", "what you see", "where today", "fixed in", "what helps first", "first seen in")
    return "\n".join(headed(head, [row(*_line(failure)) for failure in failures().values()]))


def _line(failure: Failure) -> tuple[str, ...]:
    return (
        f"[{failure.name}](../repros/{failure.name}/README.md)",
        failure.title,
        verdicts.today(failure),
        re.split(r"[:;]|, wh(?:ich|ose)\b", failure.until)[0],
        verdicts.first_remedy(failure),
        failure.first_seen,
    )
