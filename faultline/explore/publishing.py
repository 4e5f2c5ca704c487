"""What others get of a finding: one file and an issue for upstream, or a failure's folder."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NotExportable, UsageError
from faultline.base.paths import REPROS, ROOT
from faultline.base.text import count
from faultline.explore import findings, overview, reproduction, skeleton
from faultline.explore.command import NUMBERS
from faultline.explore.findings import Finding
from faultline.explore.numbers import Numbers
from faultline.export import prove


def files(names: Sequence[str]) -> int:
    """Write the file of each finding and run it in an empty folder; one that doesn't reproduce is not kept.

    Where no file can be written, one that somebody wrote by hand runs, and stays.
    """
    wrong = 0
    chosen = findings.named(names)
    for finding in chosen:
        hand = ""
        try:
            text = reproduction.source(finding)
        except (UsageError, NotExportable) as error:
            text = hand = by_hand(finding)
            if not hand:
                print(f"{finding.name}: no file: {error}", flush=True)
                continue
        code, output = prove.run(text)
        wrong += bool(code)
        print(f"{finding.name}: {'not reproduced' if code else 'reproduced'}, {count(len(text.splitlines()), 'line')}")
        if not (hand and code):
            keep(finding, text, output, reproduced=not code)
    print(f"{count(len(chosen), 'finding')}, {wrong} with a file that doesn't reproduce")
    return EXIT_UNEXPECTED if wrong else EXIT_AS_EXPECTED


def by_hand(finding: Finding) -> str:
    """The file of a finding that no program could write; empty if there is none."""
    file = findings.FINDINGS / finding.name / findings.FILE
    return file.read_text("utf-8") if file.exists() else ""


def count_in(run: str) -> int:
    """Add what an exploration came to, and write the page of the findings anew."""
    file = Path(run) / NUMBERS
    try:
        numbers = msgspec.json.decode(file.read_bytes(), type=Numbers)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        raise UsageError(f"{run} is not the folder of an exploration that ended: it has no {NUMBERS}") from None
    overview.add(numbers)
    print(overview.write())
    return EXIT_AS_EXPECTED


def keep(finding: Finding, text: str, output: str, reproduced: bool) -> None:
    """Put the file and the issue beside the finding, or take away those that are there."""
    home = findings.FINDINGS / finding.name
    if reproduced:
        (home / findings.FILE).write_text(text, encoding="utf-8")
        (home / findings.ISSUE).write_text(reproduction.issue(finding, text, output), encoding="utf-8")
    else:
        for name in (findings.FILE, findings.ISSUE):
            (home / name).unlink(missing_ok=True)


def adopt(name: str) -> int:
    """Write the folder of a failure, of the same name, from a finding."""
    [finding] = findings.named([name])
    folder = REPROS / finding.name
    if folder.exists():
        raise UsageError(f"{folder.relative_to(ROOT)} exists")
    skeleton.write(finding, folder)
    print(f"{folder.relative_to(ROOT)}: read it, run it, record it: docs/add-a-failure.md, from step 4")
    return EXIT_AS_EXPECTED
