"""What others get of a finding: one file and an issue for upstream, which need nothing of this suite, or a failure's
folder."""

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NotExportable, UsageError
from faultline.base.packages import stack_name
from faultline.base.paths import REPROS, ROOT
from faultline.base.text import count, listing
from faultline.base.traces import shorten_paths
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.export import emit, prove
from faultline.export.cell import ExportedCell, place
from faultline.observations import measured
from lab.explore import findings, overview, skeleton
from lab.explore.findings import Finding

NAME = "finding"  # which no failure has
NOISE = re.compile(
    r"^\[\d{4}-|Warning\b|^ *(?:return func|warnings\.warn)\(|Connection closed by peer|^\{'|Gloo|\bGLHF\b"
)
"""Lines of a file's output that say nothing of what it shows."""
LINES = 8  # of it that an issue has, its last


def files(names: Sequence[str]) -> int:
    """Write the file of each finding and run it in an empty folder; one that doesn't reproduce is not kept.

    Where no file can be written, one that somebody wrote by hand runs, and stays.
    """
    wrong = 0
    chosen = findings.by_name(names)
    for finding in chosen:
        line, reproduced = export(finding)
        print(line, flush=True)
        wrong += reproduced is False
    print(overview.write())
    print(f"{count(len(chosen), 'finding')}, {wrong} with a file that doesn't reproduce")
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def export(finding: Finding) -> tuple[str, bool | None]:
    """Write a finding's file and issue into its folder, if the file reproduces it in an empty one.

    Gives a line that says so, and whether it did; None where there is no file.
    """
    hand = ""
    try:
        text = source(finding)
    except (UsageError, NotExportable) as error:
        text = hand = by_hand(finding)
        if not hand:
            return f"{finding.name}: no file: {error}", None
    code, output = prove.run(text)
    if not (hand and code):
        keep(finding, text, output, reproduced=not code)
    word = "not reproduced" if code else "reproduced"
    return f"{finding.name}: {word}, {count(len(text.splitlines()), 'line')}", not code


def by_hand(finding: Finding) -> str:
    """The file of a finding that no program could write; empty if there is none."""
    file = finding.folder / findings.FILE
    return file.read_text("utf-8") if file.exists() else ""


def take_in(folder: str) -> int:
    """Copy a finding of an exploration to those that are kept, and write their page anew."""
    finding = findings.read(Path(folder))
    home = findings.FINDINGS / finding.name
    if home.exists():
        raise UsageError(f"findings/{finding.name} exists")
    shutil.copytree(folder, home)
    print(f"findings/{finding.name}: write the cause and what was searched for into {findings.ABOUT}")
    print(overview.write())
    return EXIT_AS_EXPECTED


def count_in(run: str) -> int:
    """Add what an exploration came to, and write the page of the findings anew."""
    try:
        came_to = overview.came_to(Path(run))
    except (OSError, ValueError):
        raise UsageError(
            f"{run} is not the folder of an exploration that ended: it has no {overview.NUMBERS}"
        ) from None
    overview.add(came_to)
    print(overview.write())
    return EXIT_AS_EXPECTED


def keep(finding: Finding, text: str, output: str, reproduced: bool) -> None:
    """Put the file and the issue beside the finding, or take away those that are there."""
    if reproduced:
        (finding.folder / findings.FILE).write_text(text, encoding="utf-8")
        (finding.folder / findings.ISSUE).write_text(issue(finding, text, output), encoding="utf-8")
    else:
        for name in (findings.FILE, findings.ISSUE):
            (finding.folder / name).unlink(missing_ok=True)


def adopt(name: str) -> int:
    """Write the folder of a failure, of the same name, from a finding."""
    [finding] = findings.by_name([name])
    folder = REPROS / finding.name
    if folder.exists():
        raise UsageError(f"{folder.relative_to(ROOT)} exists")
    if finding.about.failure:
        raise UsageError(f"{finding.name} is {finding.about.failure} of the catalogue already")
    if lacks := skeleton.write(finding, folder, by_hand=True):
        print(f"write {listing(lacks)} into failure.py by hand: {finding.folder.name}/{findings.FILE} shows how")
    print(f"{folder.relative_to(ROOT)}: read it, run it, record it: docs/add-a-failure.md, from step 4")
    return EXIT_AS_EXPECTED


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
