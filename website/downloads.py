"""The files that a failure's page offers: its export and its upstream report."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from faultline.catalogue import Failure
from faultline.export.cell import place
from faultline.export.emit import write
from faultline.maintain import reports


@dataclass(frozen=True)
class Download:
    """A file of the site: its path below the site's folder, what its link says, and its content."""

    name: str
    text: str
    content: str


def of(failure: Failure) -> Iterator[Download]:
    """A failure's files; the report only if `faultline maintain reports` wrote it."""
    if cell := reports.cell_to_report(failure):
        text = f"one file that shows it without Faultline ({cell.name})"
        yield Download(f"files/{failure.name}.py", text, write(place(cell)))
    if report(failure).exists():
        text = report(failure).read_text(encoding="utf-8")
        yield Download(f"reports/{failure.name}.md", "the report for upstream", text)


def report(failure: Failure) -> Path:
    """The file of a failure's report, if it was written."""
    return reports.FOLDER / f"{failure.name}.md"
