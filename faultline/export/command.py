"""`faultline export`: one file, or one upstream issue, that shows a cell without this repository."""

import sys
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.catalogue.loading import failures
from faultline.cells.selection import Selection, select


def run(name: str, output: str = "", force: bool = False, markdown: bool = False, shown: bool = False) -> int:
    """Write the file of a cell to standard output, or to a file that is not there yet, unless `force` is set.

    With `markdown` it is an issue, and with `shown` one that has what the file prints.
    """
    from faultline.export import prove, upstream
    from faultline.export.cell import place
    from faultline.export.emit import write
    from faultline.export.issue import write_issue

    [cell] = select(failures(), Selection(cells=(name,)))
    where = place(cell)
    if where.outcome == "trains" and markdown:
        raise UsageError(
            f"{cell.id} trains on today's releases, so there is nothing to report; `faultline show {cell.failure}` "
            "has the cells that don't"
        )
    if where.outcome == "trains":
        print("this cell trains on today's releases: the file will print NOT REPRODUCED", file=sys.stderr)
    if shown and not markdown:
        raise UsageError("--run puts what the file prints into an issue: add --markdown")
    text = write(where)
    if markdown:
        code, printed = prove.run(text) if shown else (EXIT_AS_EXPECTED, "")
        if code:
            print(f"{printed}\nnot reproduced here (exit code {code}): there is nothing to report", file=sys.stderr)
            return EXIT_UNEXPECTED
        text = f"{write_issue(where, printed, upstream.environment(where)).rstrip()}\n"
    if output in ("", "-"):
        print(text, end="")
        return EXIT_AS_EXPECTED
    file = Path(output)
    if file.exists() and not force:
        raise UsageError(f"{file} exists: --force overwrites it")
    file.write_text(text, encoding="utf-8")
    print(f"{file}: {len(text.splitlines())} lines")
    return EXIT_AS_EXPECTED
