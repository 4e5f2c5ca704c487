"""The table of all failures: one line each, made from their records and blessed rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from faultline import claims, known, readmes, report, strategies, verdicts
from faultline.catalogue import REMEDIES, ROOT, Failure, failures
from faultline.matrix import default_world
from faultline.stacks import TODAY

BEGIN, END = "<!-- failures: begin -->", "<!-- failures: end -->"
README = ROOT / "README.md"
WORDS = {"misplaced": "misplaced", "diverges": "silent", "raises": "raises", "hangs": "hangs", "crashes": "crashes"}


def rewrite() -> str:
    """Put the table into the project's README, and say whether that changed the file."""
    return readmes.put(README, table, (BEGIN, END))


def table() -> str:
    """Markdown: each failure with where it happens today, since and until when, what helps and what doesn't."""
    head = ("failure", "what happens", "where, today", "since", "until", "helps", "doesn't help")
    return "\n".join(readmes.headed(head, [readmes.row(*_line(failure)) for failure in failures().values()]))


def _line(failure: Failure) -> tuple[str, ...]:
    words = {
        key: verdicts.by_rules(failure, claim).word for key, claim in failure.claims.items() if claim.kind in REMEDIES
    }

    def told(word: str, mark: Callable[[str], str] = str) -> list[str]:
        return [mark(failure.claims[key].text) for key in words if words[key] == word]

    helps = told("verified") + told("conditional", lambda text: f"in places: {text}")
    return (
        f"[{failure.name}](repros/{failure.name}/README.md)",
        failure.title,
        "; ".join(where(failure)) or _unseen(failure),
        failure.since,
        failure.until,
        "; ".join(helps),
        "; ".join(told("refuted")),
    )


def _unseen(failure: Failure) -> str:
    """What is told of a failure that today's stack doesn't show."""
    if failure.not_reproduced or not failure.reported:
        return f"not reproduced: {failure.not_reproduced}"
    stack, precision = failure.reported.stack, failure.reported.precision
    setting = stack.replace("-", " ") + (f" in {precision}" if precision != "fp32" else "")
    return f"nowhere any more; with {setting}, {'; '.join(where(failure, stack, precision))}"


def where(failure: Failure, stack: str = TODAY, precision: str = "fp32") -> list[str]:
    """How the broken variants end on a stack, at the usual world size, and under which strategies."""
    names: dict[str, dict[str, None]] = {}
    outcomes = known.outcomes(failure, stack)
    for cell in claims.showing(failure, outcomes):
        if cell.precision == precision and cell.world_size == default_world(cell):
            names.setdefault(WORDS[outcomes[cell][0]], {})[cell.strategy] = None
    return [f"{word}: {readmes.as_code(report.grouped(found, strategies.names()))}" for word, found in names.items()]


def lines(text: str) -> Iterable[str]:
    """The failures that a text's table has a line for."""
    inside = text.partition(BEGIN)[2].partition(END)[0]
    return [line.split("](")[0][3:] for line in inside.splitlines() if line.startswith("| [")]
