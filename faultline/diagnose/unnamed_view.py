"""The answer on the terminal where no failure is named: what the log shows all the same, and what to do next."""

import re
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.base.console import write_line
from faultline.base.text import count, cut, here, one_line
from faultline.cells import words
from faultline.cells.words import group_strategies
from faultline.diagnose.diagnosis import Diagnosis
from faultline.diagnose.events import TIMEOUT, Event
from faultline.diagnose.prose import NearMatch, only_with
from faultline.diagnose.silent import SameLosses, Silence
from faultline.observations import ambiguity, matching

SHOWN = 300  # characters of an error
_COLLECTIVE = re.compile(r"(?:SeqNum=(?P<place>\d+), ?)?OpType=(?P<name>\w+)(?:, ?NumelIn=(?P<size>\d+))?")
# As torch.distributed says it with TORCH_DISTRIBUTED_DEBUG=DETAIL, of two ranks.
_MISMATCH = re.compile(r"Rank (\d{1,5}) is running collective: CollectiveFingerPrint\([^)]{0,200}OpType=(\w{1,40})")
BRANCH = "Look for a module or a branch that only some of them run, such as one for images."
# What to do where a log shows nothing, as nothing raises where training only goes wrong.
NEXT = {
    "You saw an error?": "paste it from its first line to its last, of the rank that failed first",
    "Nothing raised?": "faultline list --symptoms: what one sees, and the failures behind it",
    "A model:": "faultline check train.py:build: trains it under every strategy, and says what differs",
    "A project:": "faultline audit .: reads configs and scripts, and lists what applies",
}
OTHERS = 4  # events that are shown beside the cause


def show_unnamed(console: Console, diagnosis: Diagnosis) -> None:
    cause = diagnosis.cause
    headline(console, *_no_answer(diagnosis))
    if cause:
        console.print()
        show_events(console, diagnosis)
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
        headline(console, "Search for", diagnosis.search)
    if diagnosis.by_words:
        _show_candidates(console, diagnosis.by_words)
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
    if diagnosis.by_words and not (diagnosis.cause or diagnosis.same or diagnosis.warned):
        return none, ""
    if not diagnosis.cause:
        if diagnosis.same:
            return none, f"but {count(len(diagnosis.same.ranks), 'rank')} log the same losses to the last digit"
        return none, "but a line in it may be of a failure" if diagnosis.warned else ""
    if len(ranks := _MISMATCH.findall(diagnosis.cause.text)) > 1:
        each = ", ".join(f"rank {rank} in {name}" for rank, name in ranks)
        return "Not in the catalogue", f"ranks run different collectives: {each}. {BRANCH}"
    if not diagnosis.cause.follows and any(match.against == matching.SHARED for match in diagnosis.alike):
        return "Probably not in the catalogue", "many mistakes raise this error"
    if not diagnosis.cause.follows:
        return "Not in the catalogue", ""
    timeouts = [event.rank for event in diagnosis.events.events if event.type == TIMEOUT]
    waited = sorted({rank for rank in timeouts if rank is not None})
    advice = "Look at the logs of the other ranks for the first error."
    if apart := _collectives(diagnosis.events.events):
        each = ", ".join(f"rank {rank} in {name}" for rank, name in apart.items())
        advice = f"The ranks wait in different collectives: {each}. {BRANCH}"
    elif timeouts:
        whose = f"Rank{'s' if len(waited) > 1 else ''} {', '.join(map(str, waited))}" if waited else "A rank"
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


def _show_candidates(console: Console, candidates: Sequence[NearMatch]) -> None:
    """Print the failures that the words may be about, what distinguishes each, and the command that shows it."""
    console.print()
    which = "one of these" if len(candidates) > 1 else "this failure"
    headline(console, f"By its words it may be {which}", "words prove nothing: compare what distinguishes it")
    for candidate in candidates:
        failure, cell = candidate.failure, candidate.cell
        console.print()
        headline(console, failure.name, failure.title, "bold yellow")
        rows = {
            "your words": f'"{cut(candidate.words, SHOWN)}"',
            "people see": candidate.symptom.text,
            "only with": only_with(failure),
            "what helps": candidate.remedy,
            "to see it": here(words.command(cell.id)) if cell else "",
            "details": here(f"faultline show {failure.name}"),
        }
        for label, text in rows.items():
            if text:
                write_line(console, f"  {label:<11} {text}")
    console.print()
    write_line(console, "If none of these fits:")
    _next(console)


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


def show_events(console: Console, diagnosis: Diagnosis) -> None:
    """The cause, then the others in their order; of consequences alone none comes first but by its place in the log."""
    cause, events = diagnosis.cause, diagnosis.events
    assert cause
    aftermath = cause.follows and not diagnosis.match
    first = events.events[0] if aftermath else cause
    write_line(console, f"  {lines_of(first)}  {cut(first.text, SHOWN)}")
    others = [event for event in events.events if event is not first]
    for event in others[:OTHERS]:
        word = "" if aftermath else "only followed: " if event.follows else "besides: "
        write_line(console, Text(f"  {lines_of(event)}  {word}{cut(event.text, 100)}", style="dim"))
    if events.partly:
        partly = "Too many lines have errors: of the later ones only tracebacks were read."
        write_line(console, Text(f"  {partly}", style="dim"))
    more = len(others) - OTHERS + events.more
    if more > 0:
        write_line(console, Text(f"  and {more} more", style="dim"))


def lines_of(event: Event) -> str:
    rank = f", rank {event.rank}" if event.rank is not None else ""
    lines = f"{event.number}" if event.number == event.last else f"{event.number}-{event.last}"
    return f"{one_line(event.file)}:{lines}{rank}"


def headline(console: Console, answer: str, reason: str, style: str = "bold") -> None:
    write_line(console, Text(answer, style=style).append(f"  {reason}" if reason else "", style="not bold default"))
