"""Upstream reports of what today's releases still have: exported into generated/reports/, and run once."""

from fnmatch import fnmatchcase

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.paths import GENERATED
from faultline.base.text import matches
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.cells import claims, rules, selection
from faultline.cells.cell import Cell, split_values
from faultline.cells.selection import Selection
from faultline.export import issue, prove, upstream
from faultline.export.cell import place
from faultline.observations import measured

FOLDER = GENERATED / "reports"


def run(names: str) -> int:
    """Export the cell that shows each failure, run the file, and write the report of those that reproduced.

    Exit code 1 if a file did something else: there is no report of it.
    """
    asked = Selection(failure=split_values(names))
    selection.check(failures(), asked)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wrong = False
    chosen = [failure for failure in failures().values() if matches(failure.name, asked.failure or ("*",))]
    cells = [cell for cell in map(cell_to_report, chosen) if cell]
    prove.announce(cells)
    for cell in cells:
        proof = prove.one(cell)
        print(f"{cell.id}: {proof.why or 'reproduced'}, {proof.lines} lines, {proof.seconds:.0f} s", flush=True)
        report = FOLDER / f"{cell.failure}.md"
        if proof.why:
            wrong = True
            report.unlink(missing_ok=True)
        else:
            output = proof.file.with_suffix(".log").read_text(encoding="utf-8")
            where = place(cell)
            report.write_text(issue.write_issue(where, output, upstream.environment(where)), encoding="utf-8")
    print(f"{FOLDER}: {len(list(FOLDER.glob('*.md')))} reports")
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def cell_to_report(failure: Failure) -> Cell | None:
    """The cell that shows a failure on today's stack, if one does that can be exported: the one that its `report`
    names, or else its mechanism as it was reported, preferably without an error."""
    today = measured.outcomes(failure)
    showing = [cell for cell in claims.showing(failure, today) if rules.exportable(cell, today[cell][1])]
    showing = [cell for cell in showing if fnmatchcase(cell.name, failure.report)] or showing
    return min(measured.quick(showing), key=lambda cell: today[cell][0] == "raises", default=None)
