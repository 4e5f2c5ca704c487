"""`faultline export`: one file, or one upstream issue, that shows a cell without this repository."""

import sys
from dataclasses import dataclass
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, select


@dataclass(frozen=True)
class ExportRequest:
    """A cell's id, and where its file goes: standard output, or a file that is not there yet, unless `force` is set.

    With `markdown` it is an issue, and with `run` one that has what the file prints.
    """

    cell: str
    output: str = ""
    force: bool = False
    markdown: bool = False
    run: bool = False


def run(request: ExportRequest) -> int:
    """Write the file of a cell to standard output, or to the file that `output` names."""
    from faultline.export import prove, upstream
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
    if request.run and not request.markdown:
        raise UsageError("--run puts what the file prints into an issue: add --markdown")
    text = write(where)
    if request.markdown:
        code, output = prove.run(text) if request.run else (EXIT_AS_EXPECTED, "")
        if code:
            print(f"{output}\nnot reproduced here (exit code {code}): there is nothing to report", file=sys.stderr)
            return EXIT_UNEXPECTED
        text = f"{write_issue(where, output, upstream.environment(where)).rstrip()}\n"
    if request.output in ("", "-"):
        print(text, end="")
        return EXIT_AS_EXPECTED
    file = Path(request.output)
    if file.exists() and not request.force:
        raise UsageError(f"{file} exists: --force overwrites it")
    file.write_text(text, encoding="utf-8")
    print(f"{file}: {len(text.splitlines())} lines")
    return EXIT_AS_EXPECTED
