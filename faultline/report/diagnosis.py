"""The answer to a log on the terminal: its name, why, what helps, what doesn't, the command, the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from faultline import known, report, strategies
from faultline.events import Event
from faultline.matrix import CHECKPOINTING
from faultline.report import one_line

if TYPE_CHECKING:
    from faultline.diagnose import Diagnosis, Match

SHOWN = 300  # characters of an error
FOLLOWED = 4  # events that are shown of those that only followed


def show(console: Console, told: Diagnosis) -> None:
    """Print an answer; every text of the log goes through `one_line`."""
    if told.match:
        _known(console, told, told.match)
    else:
        _unknown(console, told)


def _known(console: Console, told: Diagnosis, match: Match) -> None:
    failure = match.failure
    style = "bold green" if match.sure == "certain" else "bold yellow"
    _line(console, Text(failure.name, style=style).append(f"  {failure.title}", style="not bold default"))
    console.print()
    _why(console, told)
    fates, exact = known.fates(failure, match.signature, match.where)
    place = _run(told) if exact else "where this error was measured, not under just what your log names"
    for heading, words in (("What helps", ("verified", "conditional")), ("What doesn't", ("refuted",))):
        chosen = [fate for fate in fates if fate.word in words]
        if chosen:
            console.print()
            _line(
                console,
                Text(heading, style="bold").append(f"  ({place or 'wherever it was measured'})", "not bold dim"),
            )
        for fate in sorted(chosen, key=lambda fate: (words.index(fate.word), fate.claim.kind != "helps")):
            told_of = f"{fate.speak_for} of {fate.cells} {'cell' if fate.cells == 1 else 'cells'}"
            did = f"; else {', '.join(fate.instead)}" if fate.instead else ""
            what = "shows it beforehand: " if fate.claim.kind == "detects" else ""
            _line(console, f"  {fate.word:<11}  {what}{fate.claim.text}  [{told_of}{did}]")
    console.print()
    _line(console, Text("Fixed", style="bold").append(f"  {failure.until}", style="not bold"))
    _measured(console, told, match)
    from faultline.diagnose import commands

    for command in commands(match):
        _line(console, Text("Again", style="bold").append(f"  {command}", style="not bold"))
    _line(console, Text("More", style="bold").append(f"   python -m faultline show {failure.name}", style="not bold"))
    for record in failure.records:
        _line(console, f"       {record}")


def _why(console: Console, told: Diagnosis) -> None:
    """How sure the answer is, and the lines that it stands on."""
    match, cause = told.match, told.cause
    assert cause
    if match:
        reasons = {
            "certain": f"runs ended with these words under {_run(told)}",
            "likely": "the words are its own; name --strategy and --checkpointing for what was measured there",
        }
        _line(console, Text(match.sure, style="bold").append(f"  {reasons[match.sure]}", style="not bold"))
    _line(console, f"  {_place(cause)}  {one_line(cause.text)[:SHOWN]}")
    _followed(console, told)


def _followed(console: Console, told: Diagnosis) -> None:
    others = [event for event in told.found.events if event is not told.cause]
    for event in others[:FOLLOWED]:
        word = "only followed" if event.follows else "besides"
        _line(console, Text(f"  {_place(event)}  {word}: {one_line(event.text)[:100]}", style="dim"))
    more = len(others) - FOLLOWED + told.found.more
    if more > 0:
        _line(console, Text(f"  and {more} more", style="dim"))


def _measured(console: Console, told: Diagnosis, match: Match) -> None:
    from faultline.diagnose import happens, then

    if places := happens(match):
        _line(console, Text("Today", style="bold").append(f"  it happens under {'; '.join(places)}", style="not bold"))
    if near := then(told):
        versions = ", ".join(
            f"{name} {near['versions'][name]}" for name in told.hints.versions if name in near["versions"]
        )
        did = ", ".join(f"{count} x {outcome}" for outcome, count in near["outcomes"].items())
        text = f"  the nearest stack that was measured, {near['date']} ({one_line(versions)}): {did}"
        _line(console, Text("Yours", style="bold").append(text, style="not bold"))


def _unknown(console: Console, told: Diagnosis) -> None:
    _line(console, Text("unknown", style="bold").append(_no_answer(told), style="not bold"))
    if told.cause:
        console.print()
        _line(console, f"  {_place(told.cause)}  {one_line(told.cause.text)[:SHOWN]}")
        _followed(console, told)
    for match in told.alike:
        _line(console, f"  It is not taken for {match.failure.name}: {match.against}.")
    if told.alike:
        _line(console, "  If you know better, --strategy and --checkpointing say how it was run.")
    if told.cause and not told.cause.follows:
        console.print()
        _line(console, Text("Search for", style="bold").append(f"  {told.search}", style="not bold"))


def _no_answer(told: Diagnosis) -> str:
    if not told.cause:
        return "  no line of this log tells an error"
    if told.cause.follows:
        return "  all that this log has are consequences; the first cause is in the log of another rank"
    return "  this error is none of the catalogue's"


def _place(event: Event) -> str:
    rank = f", rank {event.rank}" if event.rank is not None else ""
    lines = f"{event.number}" if event.number == event.last else f"{event.number}-{event.last}"
    return f"{one_line(event.file)}:{lines}{rank}"


def _run(told: Diagnosis) -> str:
    """What is known of the run in words: ``zero2*, reentrant``."""
    parts = []
    if told.hints.strategies:
        parts.append(report.grouped(told.hints.strategies, strategies.names()))
    if told.hints.modes and len(told.hints.modes) < len(CHECKPOINTING):
        parts.append("checkpointing " + " or ".join(mode for mode in CHECKPOINTING if mode in told.hints.modes))
    return ", ".join(parts)


def _line(console: Console, text: str | Text) -> None:
    console.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)
