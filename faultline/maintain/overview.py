"""What pages list of the catalogue and its strategies, made from the records and their blessed rules."""

import re
from collections import Counter

from faultline import strategies
from faultline.base.markdown import headed, put, row
from faultline.base.paths import ROOT
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.cells.words import grouped
from faultline.maintain import on_gpus
from faultline.observations import symptoms, verdicts
from faultline.releases import recorded

README, DOCS = ROOT / "README.md", ROOT / "docs"
CATALOGUE, CI, MATRIX, TIMELINE = (DOCS / f"{name}.md" for name in ("catalogue", "ci", "matrix", "timeline"))
COUNTS = "<!-- counts: begin -->", "<!-- counts: end -->"
FAILURES = "<!-- failures: begin -->", "<!-- failures: end -->"
STRATEGIES = "<!-- strategies: begin -->", "<!-- strategies: end -->"
SYMPTOMS = "<!-- symptoms: begin -->", "<!-- symptoms: end -->"
GPUS = "<!-- gpus: begin -->", "<!-- gpus: end -->"
MONTHS = "<!-- months: begin -->", "<!-- months: end -->"
VERDICTS = ("verified", "refuted", "conditional", "untested")


def rewrite() -> str:
    """Rewrite the tables and the figures, and report for each file whether it changed."""
    pages = [(CATALOGUE, table, FAILURES), (CATALOGUE, symptoms_list, SYMPTOMS), (README, counts, COUNTS)]
    pages += [(MATRIX, families, STRATEGIES), (TIMELINE, recorded.monthly_table, MONTHS), (CI, on_gpus.table, GPUS)]
    return "\n".join([put(*page) for page in pages])


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


def symptoms_list() -> str:
    """Markdown: what one sees without an error, and below it the failures that show it today, with their strategies."""
    lines = []
    for words, by_failure in symptoms.by_symptom().items():
        lines += [f"### {words[0].upper()}{words[1:]}", ""]
        for name, where in by_failure.items():
            places = ", ".join(f"`{word}`" for word in grouped(where, ()).split(", "))
            lines.append(f"- {_link(name)}: {failures()[name].title}; under {places}")
        lines.append("")
    return "\n".join(lines).strip()


def _link(name: str) -> str:
    return f"[{name}](../repros/{name}/README.md)"


def table() -> str:
    """Markdown: each failure on one line, with where it happens today, its fix and its first remedy."""
    head = ("failure", "what you see", "where today", "fixed in", "what helps first", "first seen in")
    return "\n".join(headed(head, [row(*_line(failure)) for failure in failures().values()]))


def _line(failure: Failure) -> tuple[str, ...]:
    return (
        _link(failure.name),
        failure.title,
        verdicts.today(failure),
        re.split(r"[:;]|, wh(?:ich|ose)\b", failure.until)[0],
        verdicts.first_remedy(failure),
        failure.first_seen,
    )
