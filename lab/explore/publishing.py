"""What others get of a finding: one file and an issue for upstream, or a failure's folder."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NotExportable, UsageError
from faultline.base.paths import REPROS, ROOT
from faultline.base.text import count, listing
from faultline.export import prove
from lab.explore import findings, numbers, overview, reproduction, skeleton
from lab.explore.findings import Finding


def files(names: Sequence[str]) -> int:
    """Write the file of each finding and run it in an empty folder; one that doesn't reproduce is not kept.

    Where no file can be written, one that somebody wrote by hand runs, and stays.
    """
    wrong = 0
    chosen = findings.named(names)
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
        text = reproduction.source(finding)
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
        came_to = numbers.read(Path(run))
    except (OSError, ValueError):
        raise UsageError(f"{run} is not the folder of an exploration that ended: it has no {numbers.FILE}") from None
    overview.add(came_to)
    print(overview.write())
    return EXIT_AS_EXPECTED


def keep(finding: Finding, text: str, output: str, reproduced: bool) -> None:
    """Put the file and the issue beside the finding, or take away those that are there."""
    if reproduced:
        (finding.folder / findings.FILE).write_text(text, encoding="utf-8")
        (finding.folder / findings.ISSUE).write_text(reproduction.issue(finding, text, output), encoding="utf-8")
    else:
        for name in (findings.FILE, findings.ISSUE):
            (finding.folder / name).unlink(missing_ok=True)


def adopt(name: str) -> int:
    """Write the folder of a failure, of the same name, from a finding."""
    [finding] = findings.named([name])
    folder = REPROS / finding.name
    if folder.exists():
        raise UsageError(f"{folder.relative_to(ROOT)} exists")
    if finding.about.failure:
        raise UsageError(f"{finding.name} is {finding.about.failure} of the catalogue already")
    if lacks := skeleton.write(finding, folder, by_hand=True):
        print(f"write {listing(lacks)} into failure.py by hand: {finding.folder.name}/{findings.FILE} shows how")
    print(f"{folder.relative_to(ROOT)}: read it, run it, record it: docs/add-a-failure.md, from step 4")
    return EXIT_AS_EXPECTED
