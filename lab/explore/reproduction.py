"""A finding as one file and as an issue for upstream, which need nothing of this suite."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

from faultline.base.errors import NotExportable, UsageError
from faultline.base.packages import stack_name
from faultline.base.traces import shorten_paths
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.export import emit
from faultline.export.cell import ExportedCell, place
from faultline.observations import measured
from lab.explore import skeleton
from lab.explore.findings import Finding

NAME = "finding"  # which no failure has
NOISE = re.compile(
    r"^\[\d{4}-|Warning\b|^ *(?:return func|warnings\.warn)\(|Connection closed by peer|^\{'|Gloo|\bGLHF\b"
)
"""Lines of a file's output that say nothing of what it shows."""
LINES = 8  # of it that an issue has, its last


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
        detail=shorten_paths(finding.seen.detail),
        name=engine,
        does=does,
        stack=stack_name(finding.seen.stack),
        file=text.rstrip(),
        output="\n".join([line for line in shorten_paths(output).splitlines() if not NOISE.search(line)][-LINES:]),
    )


def engine(strategy: str) -> str:
    """A strategy in words that its project knows, such as "FSDP1 (full)"."""
    head, _, others = strategy.partition("-")
    known = f"ZeRO-{head.removeprefix('zero')}" if head.startswith("zero") else head.upper()
    return f"{known} ({others.replace('-', ' ')})" if others else known


def does(did: str) -> str:
    """What a training does, in plain words."""
    outcome, _, signature = did.partition(" ")
    words = {
        Outcome.TRAINS: "Trains as in one process",
        Outcome.DIVERGES: "Trains otherwise than in one process, without an error",
        Outcome.MISPLACED: "Trains, and holds what it shouldn't",
        Outcome.RAISES: "Raises an error",
        Outcome.CRASHES: f"Crashes {signature}".strip(),
        Outcome.HANGS: "Hangs",
    }
    return words.get(Outcome(outcome), outcome.capitalize())
