"""The answer of an audit on the terminal: what is known, the failures that it leaves, and what helps."""

from __future__ import annotations

import re

from rich.console import Console
from rich.text import Text

from faultline import conditions, report, strategies
from faultline.catalogue import NEEDS, Failure
from faultline.conditions import Case, Finding
from faultline.matrix import CHECKPOINTING
from faultline.report import one_line
from faultline.server import STACK
from faultline.setups import Setup, few

ORDER = ("verified", "conditional", "refuted")
PLACE = re.compile(r"(?<=\d) [^:]*(?::.*)?$")  # what stands behind a file and its line


def show(console: Console, setup: Setup, found: list[Finding], everything: bool = False) -> None:
    """Print an audit, with `everything` the details of what only could apply, too.

    Every text of a file goes through `one_line`.
    """
    _line(console, Text("Known", style="bold").append(f"  from {few(setup.read)}", style="not bold dim"))
    for key in ("strategy", "checkpointing", "precision", "trainer", *NEEDS):
        if key in setup.left:
            _told(console, f"  {key}", f"{_values(setup, key)}  ({few(setup.sources[key])})")
    for name in STACK:
        if name in setup.versions:
            _told(console, f"  {name}", f"{setup.versions[name].text or 'any'}  ({few(setup.sources[name])})")
    from faultline.audit import unknown  # which imports this module

    _told(console, "  not said", ", ".join(unknown(setup)) or "nothing that failures depend on")
    for note in setup.notes:
        _line(console, Text(f"  {one_line(note)}", style="yellow"))
    console.print()
    sure = [finding for finding in found if finding.sure]
    near = [finding for finding in found if finding.applies and not finding.sure]
    could = [finding for finding in found if not finding.applies]
    if not (sure or near or (everything and could)):
        _line(console, Text("No failure of the catalogue has its recorded conditions here.", style="bold green"))
    for heading, own in (
        ("Every recorded condition holds", sure),
        ("What the files say holds, and the rest they don't say", near),
        ("Could apply, if", could if everything else []),
    ):
        for number, finding in enumerate(own):
            if not number:
                _line(console, Text(f"{heading}: {len(own)}", style="bold"))
                console.print()
            _finding(console, setup, finding)
            console.print()
    if could and not everything:
        more = "1 failure" if len(could) == 1 else f"{len(could)} failures"
        _line(console, Text(f"{more} could apply, depending on what isn't said here; --all tells on what", style="dim"))


def _finding(console: Console, setup: Setup, finding: Finding) -> None:
    failure = finding.failure
    style = "bold red" if finding.sure else "bold yellow"
    _line(console, Text(failure.name, style=style).append(f"  {failure.title}", style="not bold default"))
    shared = [c for c in finding.cases[0].holds if all(c in case.holds for case in finding.cases)]
    _holds(console, setup, shared)
    told: set[str] = set()
    for number, case in enumerate(finding.cases):
        if number:
            _line(console, Text("  or", style="bold"))
        _holds(console, setup, [condition for condition in case.holds if condition not in shared])
        _case(console, setup, failure, case, told)
    _told(console, "  fix", failure.until)
    _told(console, "  more", report.here(f"python -m faultline show {failure.name}"))
    for record in failure.records:
        _told(console, "", record)


def _case(console: Console, setup: Setup, failure: Failure, case: Case, told: set[str]) -> None:
    """One way in which a failure may arise; `told` are the remedies that stand there already."""
    from faultline.audit import MECHANISM, WITH, evidence

    shown = evidence(failure, case, setup.versions)
    whose = " of the bare mechanism" if shown.measured == MECHANISM else ""
    whose = f" with {shown.measured.removeprefix(WITH)}" if shown.measured.startswith(WITH) else whose
    for condition in case.open:
        _told(console, "  if", conditions.words(case, condition))
    today = f"{shown.today or 'none'} of {_cells(shown.of)} today"
    past = f", {shown.stacks} of {shown.of_stacks} monthly stacks" if shown.of_stacks else ""
    past += f", the last as of {shown.last}" if past and not shown.today else ""
    past += f", {'and' if shown.today else 'but'} on {', '.join(shown.pinned)}" if shown.pinned else ""
    outcomes = ", ".join(shown.outcomes) or "nothing of it in these cells"
    _told(console, "  measured", f"{outcomes}: {today}{past}")
    for upgrade in shown.upgrade:
        _told(console, "  verified", f"{upgrade}  [first release with the fix]")
    for fate in sorted(shown.remedies, key=lambda fate: (ORDER.index(fate.word), fate.claim.kind != "helps")):
        did = "; ".join((f"{fate.speak_for} of {_cells(fate.cells)}{whose}", *fate.instead))
        what = "shows it beforehand: " if fate.claim.kind == "detects" else ""
        if (line := f"{fate.word} {what}{fate.claim.text}") not in told:
            _told(console, f"  {fate.word}", f"{what}{fate.claim.text}  [{did}]")
        told.add(line)
    for command in shown.commands[:1]:
        _told(console, "  again", report.here(command))


def _holds(console: Console, setup: Setup, conditions: list[str]) -> None:
    """Conditions that hold, each with the places that it stands on."""
    for condition in conditions:
        values = setup.versions[condition].text if condition in setup.versions else f" {_values(setup, condition)}"
        places = dict.fromkeys(PLACE.sub("", source) for source in setup.sources[condition])
        _told(console, "  holds", f"{condition}{values} ({few([*places])})")


def _values(setup: Setup, key: str) -> str:
    values = setup.left[key]
    if key == "strategy":
        return report.grouped(values, strategies.names()) or "none that was measured"
    return " or ".join(report.ordered(values, CHECKPOINTING)) or "none that was measured"


def _cells(count: int) -> str:
    return f"{count} {'cell' if count == 1 else 'cells'}"


def _told(console: Console, word: str, text: str) -> None:
    _line(console, Text(f"{word:<16} ", style="bold").append(one_line(text), style="not bold"))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
