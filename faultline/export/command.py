"""`faultline export`: one file, or one upstream issue, that shows a cell without this repository."""

import sys
from dataclasses import dataclass
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, select


@dataclass(frozen=True)
class Request:
    """A cell's id, and where its file goes: standard output, or a file that is not there yet, unless `force` is set."""

    cell: str
    output: str = ""
    force: bool = False
    markdown: bool = False


def run(request: Request) -> int:
    """Write the file of a cell to standard output, or to the file that `output` names."""
    from faultline.export import upstream
    from faultline.export.cell import place
    from faultline.export.emit import write
    from faultline.export.issue import write_issue

    [cell] = select(failures(), Selection(cells=(request.cell,)))
    where = place(cell)
    if where.outcome == "trains" and request.markdown:
        raise UsageError(
            f"{cell.id} trains on today's releases, so there is nothing to report; `faultline show {cell.failure}` "
            "has the cells that don't"
        )
    if where.outcome == "trains":
        print("this cell trains on today's releases: the file will print NOT REPRODUCED", file=sys.stderr)
    text = write(where)
    if request.markdown:
        text = f"{write_issue(where, report=upstream.environment(where)).rstrip()}\n"
    if request.output in ("", "-"):
        print(text, end="")
        return EXIT_AS_EXPECTED
    file = Path(request.output)
    if file.exists() and not request.force:
        raise UsageError(f"{file} exists: --force overwrites it")
    file.write_text(text, encoding="utf-8")
    print(f"{file}: {len(text.splitlines())} lines")
    return EXIT_AS_EXPECTED
