"""Upstream reports of what today's releases still have: exported, run once, and listed in repros/README.md."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from pathlib import Path

from faultline import claims, known, matrix, overview, readmes
from faultline.catalogue import REPROS, Failure, failures
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.export import facts, issue, prove, write
from faultline.matrix import Cell, Selection
from faultline.results import stack_name

LIST = REPROS / "README.md"
REPORT = "report.md"
MARKERS = ("<!-- reports: begin -->", "<!-- reports: end -->")


def command(args: argparse.Namespace) -> int:
    """Export the telling cell of each failure, run the file, and write the report where it reproduced; exit code 1
    where a file did something else, and then there is no report."""
    asked = Selection(failure=matrix.listed(args.failure))
    matrix.check(failures(), asked)
    wrong = []
    for failure in failures().values():
        cell = telling(failure)
        if cell is None or not matrix.matches(failure.name, asked.failure or ("*",)):
            continue
        outputs: list[str] = []

        def run(text: str, outputs: list[str] = outputs) -> tuple[int, str]:
            code, output = prove.run(text)
            outputs.append(output)
            return code, output

        proof = prove.one(cell, run)
        print(f"{cell.id}: {proof.why or 'reproduced'}, {proof.lines} lines, {proof.seconds:.0f} s", flush=True)
        report = REPROS / failure.name / REPORT
        if proof.why:
            wrong.append(cell)
            report.unlink(missing_ok=True)
        else:
            report.write_text(issue.write_issue(facts.place(cell), outputs[0]), encoding="utf-8")
    print(readmes.put(LIST, table, MARKERS))
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def telling(failure: Failure) -> Cell | None:
    """The cell that shows a failure on today's stack: the one that its `report` names, else its mechanism as it was
    reported, silently if it can; None where none does."""
    today = known.outcomes(failure)
    shown = claims.showing(failure, today)
    shown = [cell for cell in shown if fnmatchcase(cell.name, failure.report)] or shown
    shown = known.quick(shown)
    return min(shown, key=lambda cell: today[cell][0] == "raises", default=None)


def pinned(report: Path) -> bool:
    """Whether there is a report, and its file is for today's stack."""
    pins = {f"{name}=={version}" for name, version in known.everything_pinned().items()}
    return report.exists() and {*write.packages_of(report.read_text(encoding="utf-8"))} <= pins


def table() -> str:
    """Markdown: each failure that has a report, with where it happens, the cell and the record upstream."""
    rows = []
    for failure in failures().values():
        cell = telling(failure)
        if cell and pinned(REPROS / failure.name / REPORT):
            rows.append(
                readmes.row(
                    f"[{failure.name}]({failure.name}/README.md)",
                    "; ".join(overview.where(failure)),
                    f"`{cell.name}`",
                    f"[report]({failure.name}/{REPORT})",
                    failure.upstream or "nobody: a mistake in one's own code",
                    failure.records[0],
                )
            )
    head = ("failure", "where, today", "the cell that the report shows", "ready to file", "for", "first record")
    told = f"Each file was run by itself and ended with REPRODUCED, on {stack_name(known.pinned())}."
    return told + "\n\n" + "\n".join(readmes.headed(head, rows))
