"""A finding as one file and as an issue for upstream, which need nothing of this suite."""

import tempfile
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
    training = finding.case.program.training
    precision, world, life = training.precision, training.world_size, training.life
    cell = Cell(finding.about.failure, "broken", finding.case.strategy, "off", precision, world, "cpu", life)
    return emit.write(place(cell))


def _of_program(finding: Finding) -> str:
    with tempfile.TemporaryDirectory(prefix="finding-") as folder:
        home = Path(folder) / NAME
        skeleton.write(finding, home)
        failure = loading.load(home)
        training = finding.case.program.training
        cell = Cell(
            NAME,
            "broken",
            finding.case.strategy,
            precision=training.precision,
            world_size=training.world_size,
        )
        raises = finding.seen.outcome == Outcome.RAISES
        named = skeleton.signature(finding) if raises else finding.seen.signature
        variant = failure.variant("broken")
        pins = dict(measured.pinned())
        return emit.write(ExportedCell(cell, failure, variant, finding.seen.outcome, named, pins, False, home))


def issue(finding: Finding, text: str, output: str) -> str:
    """The issue, with the file and what it printed."""
    return skeleton.TEMPLATES.get_template("issue.md.j2").render(
        finding=finding,
        detail=shortened(finding.seen.detail),
        stack=stack_name(finding.seen.stack),
        file=text.rstrip(),
        output="\n".join(shortened(output).splitlines()[-8:]),
    )
