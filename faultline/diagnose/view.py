"""The answer to a log on the terminal: the failure, the reason, what helps, what doesn't, the next commands."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.console import write_line
from faultline.base.text import count, here, one_line
from faultline.cells.words import group_strategies
from faultline.diagnose.diagnosis import Details, Diagnosis
from faultline.diagnose.unnamed_view import headline, lines_of, show_events, show_unnamed
from faultline.observations import ambiguity
from faultline.observations.matching import CERTAIN, Match
from faultline.report import claims


def show(console: Console, diagnosis: Diagnosis, details: Details) -> None:
    """Print an answer; every text of the log goes through `one_line`."""
    if diagnosis.match:
        _show_named(console, diagnosis, diagnosis.match, details)
    elif diagnosis.several:
        _show_several(console, diagnosis, details)
    elif diagnosis.cause and diagnosis.cause.name == "OutOfMemoryError":
        place = lines_of(diagnosis.cause)
        headline(console, "Not in the catalogue", f"plain out of memory, not a fault of distribution ({place})")
    else:
        show_unnamed(console, diagnosis)


def _show_named(console: Console, diagnosis: Diagnosis, match: Match, details: Details) -> None:
    style = "bold green" if match.sure == CERTAIN else "bold yellow"
    title = f"the same mechanism: {match.mechanism}" if match.mechanism else match.failure.title
    headline(console, match.failure.name, title, style)
    if seen := match.failure.first_seen:
        write_line(console, Text(f"  first seen in: {seen}", style="dim"))
    console.print()
    headline(console, match.sure, details.reason or f"our runs under {_place(diagnosis)} ended with this error")
    show_events(console, diagnosis)
    _remedies(console, diagnosis, details)
    console.print()
    _commands(console, diagnosis, match, details)


def _show_several(console: Console, diagnosis: Diagnosis, details: Details) -> None:
    """Several failures: what would show which one it is, and what helps against each of them."""
    every = diagnosis.several
    same = every[0].mechanism
    reason = f"the same mechanism: {same}" if same else "the error alone doesn't show which failure it is"
    headline(console, "One of several", reason, "bold yellow")
    for match, distinction in zip(every, ambiguity.distinctions(every), strict=True):
        runs = ambiguity.runs(match)
        evidence = f"{count(runs, 'run')} ended so" if runs else "as its report says"
        if ambiguity.elsewhere(match):
            evidence += f"; {match.against}"
        elif runs and match.where and diagnosis.hints.strategies:
            evidence += f" under {group_strategies({strategy for strategy, _ in match.where}, strategies.names())}"
        write_line(console, f"  {distinction}  [{evidence}]")
    write_line(console, "  If none of these holds, it is not in the catalogue.")
    console.print()
    show_events(console, diagnosis)
    console.print()
    none = "No remedy was verified for all of them"
    headline(console, "What helps against all of them" if details.fates else none, "")
    for verdict, text, cells in claims.remedy_rows(details.fates):
        write_line(console, f"  {verdict:<11}  {text}  [{cells}]")
    one = [(name, *claims.remedy_rows([fate])[0]) for name, fate in details.each]
    one += [(match.failure.name, *row) for match in every for row in ambiguity.upgrades(match)]
    if one:
        headline(console, "What helps against one", "")
    for name, verdict, text, evidence in one:
        write_line(console, f"  {verdict:<11}  {name}: {text}  [{evidence}]")
    console.print()
    _rows(console, [("Details", here(f"faultline show {match.failure.name}")) for match in every])


def _remedies(console: Console, diagnosis: Diagnosis, details: Details) -> None:
    place = _place(diagnosis) or "wherever it was measured"
    measured_where = {
        "there": place,
        "there in other words": f"{place}; today's versions raise another error there",
        "elsewhere": "measured in other places than your log's",
        "other words": "measured against its other errors: no run here ended with this one",
    }
    for heading, verdicts in (("What helps", ("verified", "conditional")), ("What doesn't", ("refuted",))):
        chosen = [fate for fate in details.fates if fate.word in verdicts]
        if chosen:
            console.print()
            write_line(
                console,
                Text(heading, style="bold").append(f"  ({measured_where[chosen[0].scope]})", style="not bold dim"),
            )
            for verdict, text, cells in claims.remedy_rows(chosen):
                write_line(console, f"  {verdict:<11}  {text}  [{cells}]")


def _commands(console: Console, diagnosis: Diagnosis, match: Match, details: Details) -> None:
    """The rest of an answer: the fix, where the failure happens, the next commands, the records."""
    rows = [("Fix", match.failure.until)]
    if details.happens:
        places = [place if place.startswith("as ") else f"under {place}" for place in details.happens]
        rows.append(("Happens today", "; ".join(places)))
    if details.near:
        stack, outcomes = details.near
        versions = [f"{name} {stack.versions[name]}" for name in diagnosis.hints.versions if name in stack.versions]
        did = [f"{outcome} {number}" for outcome, number in outcomes.items()]
        measured_on = f"nearest measured stack {stack.name} ({one_line(', '.join(versions))})"
        cells = count(sum(outcomes.values()), "cell")
        rows.append(("Your versions", f"{measured_on}, of {cells}: {', '.join(did)}"))
    rows += [("Reproduce", here(command)) for command in details.commands]
    if details.export:
        rows.append(("Export", here(f"faultline export {details.export.id} -o repro.py")))
    rows.append(("Details", here(f"faultline show {match.failure.name}")))
    rows += [("Records", record) for record in match.failure.records]
    _rows(console, rows)


def _rows(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    above = ""
    for label, text in rows:
        write_line(console, Text(f"{label if label != above else '':<15}", style="bold").append(text, style="not bold"))
        above = label


def _place(diagnosis: Diagnosis) -> str:
    """The place of the run as far as it is known: ``zero2*, checkpointing reentrant``."""
    where = diagnosis.match.where if diagnosis.match else frozenset()
    names = {strategy for strategy, _ in where} or diagnosis.hints.strategies
    modes = {mode for _, mode in where} or diagnosis.hints.modes
    parts = []
    if diagnosis.hints.strategies:
        parts.append(group_strategies(names, strategies.names()))
    if modes and len(modes) < len(CHECKPOINTING):
        parts.append("checkpointing " + " or ".join(mode for mode in CHECKPOINTING if mode in modes))
    return ", ".join(parts)
