"""The answer to a log on the terminal: its name, why, what helps, what doesn't, the command, the records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from faultline import known, nearby, report, strategies
from faultline.events import TIMEOUT, Event
from faultline.matching import CERTAIN, LIKELY, Match, apart, commands, happens, name_of, settling, worded
from faultline.matrix import CHECKPOINTING
from faultline.report import cut, one_line
from faultline.silence import alike, silently

if TYPE_CHECKING:
    from faultline.diagnose import Diagnosis

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
    style = "bold green" if match.sure == CERTAIN else "bold yellow"
    title = f"the same mechanism: {match.mechanism}" if match.mechanism else failure.title
    name = name_of(match, told.either)
    _line(console, Text(name, style=style).append(f"  {title}", style="not bold default"))
    for telling in apart(match, told.either):
        _line(console, f"  {telling}")
    console.print()
    _why(console, told, match)
    fates, scope = known.fates(failure, match.signature, match.where, told.hints.versions)
    place = {
        "there": _run(told) or "wherever it was measured",
        "there in other words": f"{_run(told)}, where today's versions fail in other words",
        "elsewhere": "measured elsewhere, not where your log was written",
        "other words": "measured in its other forms: no run here ended with these words",
    }
    for heading, words in (("What helps", ("verified", "conditional")), ("What doesn't", ("refuted",))):
        chosen = [fate for fate in worded(fates, match.mechanism) if fate.word in words]
        if chosen:
            console.print()
            _line(console, Text(heading, style="bold").append(f"  ({place[scope]})", style="not bold dim"))
        for fate in sorted(chosen, key=lambda fate: (words.index(fate.word), fate.claim.kind != "helps")):
            count = f"{fate.speak_for} of {fate.cells} {'cell' if fate.cells == 1 else 'cells'}"
            did = "; ".join((count, *fate.instead))
            what = "shows it beforehand: " if fate.claim.kind == "detects" else ""
            _line(console, f"  {fate.word:<11}  {what}{fate.claim.text}  [{did}]")
    console.print()
    _told(console, "Fix", failure.until)
    _measured(console, told, match)
    for command in commands(match):
        _told(console, "Again", report.here(command))
    cell, date = known.cell_for(failure, match.signature, match.where)
    if cell and not date:
        _told(console, "File", report.here(f"python -m faultline export {cell.id} -o repro.py"))
    _told(console, "More", report.here(f"python -m faultline show {failure.name}"))
    for record in failure.records:
        _told(console, "", record)


def _told(console: Console, word: str, text: str) -> None:
    _line(console, Text(f"{word:<7}", style="bold").append(text, style="not bold"))


def _why(console: Console, told: Diagnosis, match: Match) -> None:
    """How sure the answer is, and the lines that it stands on."""
    assert told.cause
    reason = f"runs ended with these words under {_run(told)}"
    if match.sure == LIKELY:
        reason = _likely(told, match)
    _line(console, Text(match.sure, style="bold").append(f"  {reason}", style="not bold"))
    _line(console, f"  {_place(told.cause)}  {cut(told.cause.text, SHOWN)}")
    _followed(console, told)


def _likely(told: Diagnosis, match: Match) -> str:
    """Why an answer is no more than likely, and what would make it certain."""
    if match.mechanism:
        which = "which of these it is, if any" if told.either else "whether it is this model too"
        return f"the error says that much; {which}, nothing in the log says"
    if match.later:
        return "this is what loads a checkpoint that such a run has left; under which strategy it ran, this can't tell"
    if nearby.gone(match.failure, match.signature, match.where, told.hints.versions):
        return "runs ended with these words, but none with your versions, or the nearest that were measured"
    context = match.failure.context.get(match.signature)
    if context and not re.search(context, told.hints.context):
        return "only what you said bears it out: other mistakes have these words too, and nothing else in the log fits"
    if told.hints.modes and told.hints.modes.isdisjoint(mode for _, mode in match.where):
        return "nothing speaks against it; it was measured in another checkpointing mode, which has no part in it"
    missing = " and ".join(settling(match, told.hints))
    return "nothing speaks against it" + (f"; {missing} would settle it" if match.where and missing else "")


def _followed(console: Console, told: Diagnosis) -> None:
    others = [event for event in told.found.events if event is not told.cause]
    for event in others[:FOLLOWED]:
        word = "only followed" if event.follows else "besides"
        _line(console, Text(f"  {_place(event)}  {word}: {cut(event.text, 100)}", style="dim"))
    if told.found.partly:
        many = "so many lines of the log tell of errors that of the later ones only tracebacks were read"
        _line(console, Text(f"  {many}", style="dim"))
    more = len(others) - FOLLOWED + told.found.more
    if more > 0:
        _line(console, Text(f"  and {more} more", style="dim"))


def _measured(console: Console, told: Diagnosis, match: Match) -> None:
    from faultline.diagnose import then  # which imports this module

    if places := happens(match):
        _told(console, "Today", f"it happens under {'; '.join(places)}")
    if near := then(told):
        versions = near["versions"]
        named = ", ".join(f"{name} {versions[name]}" for name in told.hints.versions if name in versions)
        did = ", ".join(f"{count} x {outcome}" for outcome, count in near["outcomes"].items())
        _told(console, "Yours", f"the nearest stack that was measured, {near['date']} ({one_line(named)}): {did}")


def _unknown(console: Console, told: Diagnosis) -> None:
    _line(console, Text("unknown", style="bold").append(_no_answer(told), style="not bold"))
    if told.cause:
        console.print()
        _line(console, f"  {_place(told.cause)}  {cut(told.cause.text, SHOWN)}")
        _followed(console, told)
    if told.silence:
        _silent(console, told)
    _warned(console, told)
    for match in told.alike:
        _line(console, f"  It is not taken for {match.failure.name}: {match.against}.")
    if told.alike:
        _line(console, "  If you know better, --strategy and --checkpointing say how it was run.")
    if told.cause and (seen := known.seen(told.cause.text)):
        cell, stack = seen[-1]
        more = f" ({len(seen) - 1} more in --json)" if len(seen) > 1 else ""
        _line(console, f"  Runs of this suite ended so too: {_named(cell, stack, told.cause.text)}{more}")
    if told.cause and told.cause.type == "SIGKILL":
        _line(
            console, "  No error of the program ended it: the kernel does that when memory runs out, or somebody did."
        )
    elif told.cause and not told.cause.follows:
        console.print()
        _line(console, Text("Search for", style="bold").append(f"  {told.search}", style="not bold"))


def _named(cell: str, stack: str, error: str) -> str:
    """A cell that ended with an error: the failure and its signature, if that has a name, then the cell."""
    failure, signature = known.signature_of(cell, stack, error)
    name = f"{failure} ({signature}) in " if signature not in ("", "other") else "without a name for it: "
    return f"{name}{cell}, with {stack}"


def _silent(console: Console, told: Diagnosis) -> None:
    """What is known of runs that train without a gradient; which of many mistakes it is no log tells."""
    assert told.silence
    lines = f"{one_line(told.silence.file)}:{told.silence.first}-{told.silence.last}"
    _line(console, f"  {lines}  {told.silence.steps} steps; many mistakes do that, so none is named")
    kinds = told.silence.norm.replace("0", "parameters unmoved").replace("nan", "parameters nan")
    for name, names in alike(told.silence, told.hints).items():
        where = report.grouped(names, strategies.names())
        show = report.here(f"python -m faultline show {name}")
        _line(console, f"  {name} leaves {kinds} without an error, under {where}: {show}")
    check = report.here("python -m faultline check train.py:build")
    _line(console, f"  To find the parameters and the module: {check}, or the model's folder")


def _warned(console: Console, told: Diagnosis) -> None:
    """Warnings that failures print and nothing else; none of them is sure by itself."""
    for warned in told.warned:
        _line(console, f"  {one_line(warned.file)}:{warned.line}  {cut(warned.text, SHOWN)}")
        where = report.grouped(silently(warned.failure, told.hints), strategies.names())
        show = report.here(f"python -m faultline show {warned.failure}")
        _line(console, f"  {warned.failure} says no more than that, under {where}: {show}")
        _line(console, f"  It is that if {warned.told_by}.")


def _no_answer(told: Diagnosis) -> str:
    if told.silence:
        return f"  no line of this log tells an error, and grad_norm is {told.silence.norm} in every step that it logs"
    if not told.cause:
        return f"  no line of this log tells an error{', but a failure may hide behind a warning' * bool(told.warned)}"
    if told.cause.follows:
        where = "what other ranks wrote"
        waited = [event for event in told.found.events if event.type == TIMEOUT]
        ranks = sorted({event.rank for event in waited if event.rank is not None})
        if waited:
            whose = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "a rank"
            where += f", or in what kept the others from the collective that {whose} waited for until the timeout"
        return f"  all that this log has are consequences; look for the first cause in {where}"
    return "  this error is none of the catalogue's"


def _place(event: Event) -> str:
    rank = f", rank {event.rank}" if event.rank is not None else ""
    lines = f"{event.number}" if event.number == event.last else f"{event.number}-{event.last}"
    return f"{one_line(event.file)}:{lines}{rank}"


def _run(told: Diagnosis) -> str:
    """What is known of the run in words, where the error's words leave it: ``zero2*, checkpointing reentrant``."""
    where = told.match.where if told.match else frozenset()
    names = {strategy for strategy, _ in where} or told.hints.strategies
    modes = {mode for _, mode in where} or told.hints.modes
    parts = []
    if told.hints.strategies:
        parts.append(report.grouped(names, strategies.names()))
    if modes and len(modes) < len(CHECKPOINTING):
        parts.append("checkpointing " + " or ".join(mode for mode in CHECKPOINTING if mode in modes))
    return ", ".join(parts)


def _line(console: Console, text: str | Text) -> None:
    console.print(Text(text) if isinstance(text, str) else text, soft_wrap=True)
