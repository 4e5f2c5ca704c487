"""`faultline export`: one file, or one upstream issue, that shows a cell without this repository."""

from __future__ import annotations

import argparse
from pathlib import Path

from faultline.catalogue import failures
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.matrix import Selection, select


def command(args: argparse.Namespace) -> int:
    """Write the file of a cell to standard output, or where `-o` says if nothing is there yet."""
    from faultline.export import facts, issue, write  # libcst and templates, which no other command needs

    [cell] = select(failures(), Selection(cells=(args.cell,)))
    where = facts.place(cell)
    text = issue.write_issue(where) if args.markdown else write.write(where)
    if args.output in ("", "-"):
        print(text, end="")
        return EXIT_AS_EXPECTED
    file = Path(args.output)
    if file.exists() and not args.force:
        raise UsageError(f"{file} is there already: --force overwrites it")
    file.write_text(text, encoding="utf-8")
    print(f"{file}: {len(text.splitlines())} lines")
    return EXIT_AS_EXPECTED


def command_all(args: argparse.Namespace) -> int:
    """Export cells that reproduce and run each file; exit code 1 if one did something else than its cell."""
    from faultline.export import prove

    return EXIT_AS_EXPECTED if prove.prove(args) else EXIT_UNEXPECTED


def command_reports(args: argparse.Namespace) -> int:
    """Write the upstream report of each failure that today's releases have."""
    from faultline.export import reports

    return reports.command(args)
