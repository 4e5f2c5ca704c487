"""The answer to a log on the terminal: the failure, the reason, what helps, what doesn't, the next commands."""

import re
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.console import write_line
from faultline.base.text import count, cut, here, one_line
from faultline.cells.words import group_strategies
from faultline.diagnose.diagnosis import Details, Diagnosis
from faultline.diagnose.events import TIMEOUT, Event
from faultline.diagnose.silent import SameLosses, Silence
from faultline.observations import ambiguity, matching
from faultline.observations.matching import CERTAIN, Match
from faultline.report import claims

SHOWN = 300  # characters of an error
_COLLECTIVE = re.compile(r"(?:SeqNum=(?P<place>\d+), ?)?OpType=(?P<name>\w+)(?:, ?NumelIn=(?P<size>\d+))?")
# What to do where a log shows nothing, as nothing raises where training only goes wrong.
NEXT = {
    "You saw an error?": "paste it from its first line to its last, of the rank that failed first",
    "Nothing raised?": "faultline list --symptoms: what one sees, and the failures behind it",
    "A model:": "faultline check train.py:build: trains it under every strategy, and says what differs",
    "A project:": "faultline audit .: reads configs and scripts, and lists what applies",
}
OTHERS = 4  # events that are shown beside the cause


def show(console: Console, diagnosis: Diagnosis, details: Details) -> None:
    """Print an answer; every text of the log goes through `one_line`."""
    if diagnosis.match:
        _show_named(console, diagnosis, diagnosis.match, details)
    elif diagnosis.several:
        _show_several(console, diagnosis, details)
    elif diagnosis.cause and diagnosis.cause.name == "OutOfMemoryError":
        place = _lines_of(diagnosis.cause)
        _headline(console, "Not in the catalogue", f"plain out of memory, not a fault of distribution ({place})")
    else:
        _not_named(console, diagnosis)


def _show_named(console: Console, diagnosis: Diagnosis, match: Match, details: Details) -> None:
    style = "bold green" if match.sure == CERTAIN else "bold yellow"
    title = f"the same mechanism: {match.mechanism}" if match.mechanism else match.failure.title
    _headline(console, match.failure.name, title, style)
    if seen := match.failure.first_seen:
        write_line(console, Text(f"  first seen in: {seen}", style="dim"))
    console.print()
    _headline(console, match.sure, details.reason or f"our runs under {_place(diagnosis)} ended with this error")
    _events(console, diagnosis)
    _remedies(console, diagnosis, details)
    console.print()
    _commands(console, diagnosis, match, details)


def _show_several(console: Console, diagnosis: Diagnosis, details: Details) -> None:
    """Several failures: what would show which one it is, and what helps against each of them."""
    every = diagnosis.several
    same = every[0].mechanism
    reason = f"the same mechanism: {same}" if same else "the error alone doesn't show which failure it is"
    _headline(console, "One of several", reason, "bold yellow")
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
    _events(console, diagnosis)
    console.print()
    none = "No remedy was verified for all of them"
    _headline(console, "What helps against all of them" if details.fates else none, "")
    for verdict, text, cells in claims.remedy_rows(details.fates):
        write_line(console, f"  {verdict:<11}  {text}  [{cells}]")
    one = [(name, *claims.remedy_rows([fate])[0]) for name, fate in details.each]
    one += [(match.failure.name, *row) for match in every for row in ambiguity.upgrades(match)]
    if one:
        _headline(console, "What helps against one", "")
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


def _not_named(console: Console, diagnosis: Diagnosis) -> None:
    cause = diagnosis.cause
    _headline(console, *_no_answer(diagnosis))
    if cause:
        console.print()
        _events(console, diagnosis)
    if diagnosis.silence:
        _silent(console, diagnosis.silence)
    if diagnosis.same:
        _show_same_losses(console, diagnosis.same)
    _warned(console, diagnosis)
    for match in diagnosis.alike:
        if match.against == matching.SHARED:
            (distinction,) = ambiguity.distinctions([match], "only if")
            write_line(console, f"  {distinction}.")
        else:
            write_line(console, f"  It is not {match.failure.name}: {match.against}.")
    known = {"--strategy": diagnosis.hints.strategies, "--checkpointing": len(diagnosis.hints.modes) == 1}
    if diagnosis.alike and (lacking := [option for option, value in known.items() if not value]):
        write_line(console, f"  If you know how it was run, add {' and '.join(lacking)}.")
    if cause and cause.type == "SIGKILL":
        write_line(
            console, "  The kernel ends a process like this when memory runs out, or a person did. No error was raised."
        )
    elif cause and not cause.follows:
        console.print()
        _headline(console, "Search for", diagnosis.search)
    elif not (cause or diagnosis.silence or diagnosis.warned):
        _next(console)


def _no_answer(diagnosis: Diagnosis) -> tuple[str, str]:
    """Why no failure is named: the headline, and what to do about it."""
    none = "No error found in this log"
    if silence := diagnosis.silence:
        when = (
            f"after {count(silence.after, 'step')} that had a number" if silence.after else "in every step that it logs"
        )
        return none, f"but {silence.figure} is {silence.norm} {when}"
    if not diagnosis.cause and diagnosis.cut:
        place = f"{one_line(diagnosis.cut.file)}:{diagnosis.cut.number}"
        return none, f"but a traceback begins at {place}, and its last line names the error: paste that too"
    if not diagnosis.cause:
        if diagnosis.same:
            return none, f"but {count(len(diagnosis.same.ranks), 'rank')} log the same losses to the last digit"
        return none, "but a line in it may be of a failure" if diagnosis.warned else ""
    if not diagnosis.cause.follows and any(match.against == matching.SHARED for match in diagnosis.alike):
        return "Probably not in the catalogue", "many mistakes raise this error"
    if not diagnosis.cause.follows:
        return "Not in the catalogue", ""
    timeouts = [event.rank for event in diagnosis.events.events if event.type == TIMEOUT]
    ranks = sorted({rank for rank in timeouts if rank is not None})
    advice = "Look at the logs of the other ranks for the first error."
    if apart := _collectives(diagnosis.events.events):
        each = ", ".join(f"rank {rank} in {name}" for rank, name in apart.items())
        advice = f"The ranks wait in different collectives: {each}. Look for a branch that only some of them take."
    elif timeouts:
        whose = f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "A rank"
        advice = (
            f"{whose} waited for the other ranks until a timeout. Look at their logs for an error, or the last line."
        )
    return "This log only shows the aftermath.", advice


def _collectives(events: Iterable[Event]) -> dict[int, str]:
    """The collective in which each rank waited, by the watchdog's first line of it, with its size where only that
    differs at one place in the sequence; nothing where they are the same."""
    waits: dict[int, re.Match[str]] = {}
    for event in events:
        if event.type == TIMEOUT and event.rank is not None and (wait := _COLLECTIVE.search(event.text)):
            waits.setdefault(event.rank, wait)
    names = {rank: wait["name"] for rank, wait in sorted(waits.items())}
    if len({*names.values()}) > 1:
        return names
    sizes = {rank: f"{wait['name']} of {wait['size']} numbers" for rank, wait in sorted(waits.items()) if wait["size"]}
    uneven = any(name.startswith(("ALLTOALL", "SEND", "RECV")) for name in names.values())  # as they may be
    alike = len({wait["place"] for wait in waits.values()}) == 1 and len(sizes) == len(waits) and not uneven
    return sizes if alike and len({*sizes.values()}) > 1 else {}


def _events(console: Console, diagnosis: Diagnosis) -> None:
    """The cause, then the others in their order; of consequences alone none comes first but by its place in the log."""
    cause, events = diagnosis.cause, diagnosis.events
    assert cause
    aftermath = cause.follows and not diagnosis.match
    first = events.events[0] if aftermath else cause
    write_line(console, f"  {_lines_of(first)}  {cut(first.text, SHOWN)}")
    others = [event for event in events.events if event is not first]
    for event in others[:OTHERS]:
        word = "" if aftermath else "only followed: " if event.follows else "besides: "
        write_line(console, Text(f"  {_lines_of(event)}  {word}{cut(event.text, 100)}", style="dim"))
    if events.partly:
        partly = "Too many lines have errors: of the later ones only tracebacks were read."
        write_line(console, Text(f"  {partly}", style="dim"))
    more = len(others) - OTHERS + events.more
    if more > 0:
        write_line(console, Text(f"  and {more} more", style="dim"))


def _silent(console: Console, silence: Silence) -> None:
    """Print the failures that train without a gradient; no log shows which of many mistakes it is."""
    lines = f"{one_line(silence.file)}:{'-'.join(map(str, dict.fromkeys((silence.first, silence.last))))}"
    what = f"Many mistakes do that, so no failure is named. {silence.skips}".rstrip()
    write_line(console, f"  {lines}  {count(silence.steps, 'step')}. {what}")
    parameters = silence.norm.replace("0", "parameters unmoved").replace("nan", "parameters nan")
    write_line(console, f"  These failures leave {parameters} without an error:")
    for name, names in silence.failures.items():
        write_line(console, f"    {name}, under {group_strategies(names, strategies.names())}")
    if silence.earlier:
        write_line(console, "  On older releases only:")
    for name, names in silence.earlier.items():
        write_line(console, f"    {name}, under {group_strategies(names, strategies.names())}")
    write_line(console, f"  For the details of one: {here('faultline show NAME')}")
    check = here("faultline check train.py:build")
    write_line(console, f"  To find the parameters and the module: {check}, or the model's folder")


def _show_same_losses(console: Console, same: SameLosses) -> None:
    ranks = ", ".join(map(str, same.ranks))
    write_line(console, f"  {one_line(same.file)}:{same.first}  ranks {ranks}, {same.steps} steps")
    write_line(console, "  This is right if what they log is the mean over the ranks.")
    write_line(console, "  Else every rank trains on the same rows: print a batch's first row on each rank.")


def _next(console: Console) -> None:
    for label, text in NEXT.items():
        write_line(console, f"  {label:<18} {here(text)}")


def _warned(console: Console, diagnosis: Diagnosis) -> None:
    """The warnings that failures print and nothing else; none of them is sure by itself."""
    for warned in diagnosis.warned:
        write_line(console, f"  {one_line(warned.file)}:{warned.line}  {cut(warned.text, SHOWN)}")
        where = group_strategies(warned.strategies, strategies.names())
        write_line(console, f"  {warned.failure} shows no more than this, under {where}.")
        write_line(console, f"  It is that failure if {warned.distinguished_by}.")
        write_line(console, f"  Details: {here(f'faultline show {warned.failure}')}")


def _lines_of(event: Event) -> str:
    rank = f", rank {event.rank}" if event.rank is not None else ""
    lines = f"{event.number}" if event.number == event.last else f"{event.number}-{event.last}"
    return f"{one_line(event.file)}:{lines}{rank}"


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


def _headline(console: Console, answer: str, reason: str, style: str = "bold") -> None:
    write_line(console, Text(answer, style=style).append(f"  {reason}" if reason else "", style="not bold default"))
