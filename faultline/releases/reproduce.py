"""A failure on the stack that it was reported on, next to it on the first good one, if it has one, and on today's."""

from rich.console import Console
from rich.table import Column
from rich.text import Text

from faultline.base.console import write_line
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, UsageError
from faultline.base.packages import TODAY, untagged
from faultline.base.text import cut, one_line, plain
from faultline.catalogue import Failure
from faultline.catalogue.history import Reported
from faultline.catalogue.loading import failure_named
from faultline.catalogue.outcomes import Outcome
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.report.terminal import columns
from faultline.runs import campaigns, engines
from faultline.runs.campaigns import Measured
from faultline.runs.results import Result, shows
from faultline.stacks import requests


def run(name: str, device: str = "cpu") -> int:
    """Run the cell of a failure as reported on its stacks.

    Exit code 0 if the failure shows on the old one and not on the first good one, if it names one; 1 if not. 3 says
    that one of these can't be had here, or proves neither.
    """
    failure = failure_named(name)
    if not failure.reported:
        raise UsageError(
            f"{failure.name} names no older stack: `faultline run --failure {failure.name}` shows it on today's"
        )
    cell = as_reported(failure, failure.reported, device)
    engines.check_device(cell.device)
    campaign = campaigns.begin("reproduce", {"failure": failure.name, "cell": cell.id}, workers=1, fresh=True)
    names = [name for name in (failure.reported.stack, failure.reported.good, TODAY) if name]
    campaigns.announce(campaign, [cell], len(names))
    measured = [campaigns.measure(campaign, name, requests.parse(name), [cell]) for name in names]
    note = failure.reported.note if cell.device == "cpu" else ""
    show(Console(), failure, cell, measured, note)
    print(f"results: {campaign.folder.shown}")
    shown = [shown_by(failure, each.results[0]) if not each.unusable else None for each in measured[:-1]]
    if None in shown:
        return EXIT_UNDECIDED
    return EXIT_AS_EXPECTED if shown[0] and not any(shown[1:]) else EXIT_UNEXPECTED


def shown_by(failure: Failure, entry: Result) -> bool | None:
    """Whether a result is the failure; None where the cell proves nothing, or can't exist there."""
    return None if entry.outcome in (Outcome.INVALID, Outcome.IMPOSSIBLE) else shows(failure, entry)


def as_reported(failure: Failure, where: Reported, device: str) -> Cell:
    """The cell in which a failure was reported."""
    return Cell(failure.name, **where.place, device=device)


def show(console: Console, failure: Failure, cell: Cell, both: list[Measured], note: str) -> None:
    """The outcomes side by side, then the full error of each; all of it can be pasted."""
    write_line(console, Text(failure.name, "bold").append(f"  {failure.title}", "not bold dim"))
    write_line(console, cell.id)
    table = columns("", *(Column(Text(one_line(each.name)), overflow="fold") for each in both))
    versions = [untagged(each.versions) for each in both]
    for package in sorted({name for each in versions for name in each}):
        table.add_row(package, *(Text(each.get(package, "")) for each in versions))
    table.add_section()
    outcomes = [str(each.results[0].did) if each.results else "uninstallable" for each in both]
    details = [each.results[0].detail if each.results else each.unusable for each in both]
    table.add_row("outcome", *(Text(each, "bold") for each in outcomes))
    table.add_row("detail", *(Text(cut(each, 400)) for each in details))
    console.print(table)
    if note:
        write_line(console, f"Note: {note}.")
    for each in both:
        if error := _error(each):
            write_line(console, f"The error on {each.name}:", "bold")
            console.print(Text(plain(error)), soft_wrap=True)
    for each in both:
        again = words.command(cell.id, "" if each.name == TODAY else each.name)
        write_line(console, f"again on {each.name}: {again}")


def _error(measured: Measured) -> str:
    """The traceback of the rank that failed first; of ranks that hang, where they wait; the last words of dead ones."""
    if not measured.results:
        return ""
    result = measured.results[0]
    first = result.raised
    if first and first.error:
        return f"rank {first.rank}:\n{first.error.traceback}"
    if result.outcome not in ("hangs", "crashes"):
        return ""
    return "\n".join(rank.stack or rank.log for rank in result.ranks if rank.stack or rank.log)
