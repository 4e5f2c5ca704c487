"""A finding as one file and as an issue for upstream, which need nothing of this suite."""

import tempfile
from dataclasses import replace
from pathlib import Path

from faultline.base.errors import NotExportable, UsageError
from faultline.base.packages import stack_name
from faultline.base.traces import shortened
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.explore import skeleton
from faultline.explore.findings import Finding
from faultline.export import emit
from faultline.export.cell import ExportedCell, place
from faultline.observations import measured

NAME = "finding"  # which no failure has


def source(finding: Finding) -> str:
    """The file, or that of the failure which the finding is, where its program can't be written as one.

    Raises UsageError or NotExportable where neither can.
    """
    try:
        return _of_program(finding)
    except (UsageError, NotExportable):
        if not finding.about.failure:
            raise
    return emit.write(place(_cell(finding, finding.about.failure)))


def _of_program(finding: Finding) -> str:
    with tempfile.TemporaryDirectory(prefix="finding-") as folder:
        home = Path(folder) / NAME
        skeleton.write(finding, home)
        failure = loading.load(home)
        cell = _cell(finding, NAME)
        raises = finding.seen.outcome == Outcome.RAISES
        named = skeleton.signature(finding) if raises else finding.seen.signature
        variant = failure.variant(cell.variant)
        pins = dict(measured.pinned())
        return emit.write(ExportedCell(cell, failure, variant, finding.seen.outcome, named, pins, False, home))


def _cell(finding: Finding, failure: str) -> Cell:
    """The place where a finding was seen, as the cell of a failure's broken variant on the CPU."""
    program = finding.case.program
    variant = f"{program.trainer}-broken" if program.in_trl else "broken"
    return replace(finding.case.cell, failure=failure, variant=variant, device="cpu")


def issue(finding: Finding, text: str, output: str) -> str:
    """The issue, with the file and what it printed."""
    return skeleton.TEMPLATES.get_template("issue.md.j2").render(
        finding=finding,
        detail=shortened(finding.seen.detail),
        stack=stack_name(finding.seen.stack),
        file=text.rstrip(),
        output="\n".join(shortened(output).splitlines()[-8:]),
    )
