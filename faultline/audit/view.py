"""The answer of an audit on the terminal: what is known, the failures that it leaves, what helps, and what is open."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from faultline.audit.conditions import Case, Finding
from faultline.audit.data import Measured
from faultline.audit.evidence import Observed
from faultline.audit.project import Project, few
from faultline.audit.undecided import label
from faultline.audit.wording import holding, summary, undecided, value
from faultline.base.console import write_line
from faultline.base.packages import STACK
from faultline.base.text import count, here, one_line
from faultline.catalogue.loading import needs
from faultline.report import remedies as listed

RESTS = {"likely": " (some settings unknown)", "possible": " (each if its open conditions hold)"}


def show(console: Console, project: Project, findings: Sequence[Finding], measured: Measured) -> None:
    """Print an audit: the findings that have evidence, and how many are open beside them.

    Every text of a file goes through `one_line`.
    """
    _known(console, project)
    for word in ("certain", "likely", "possible"):
        of_word = [finding for finding in findings if finding.word == word]
        _matches(console, project, [f for f in of_word if f.failure.name in measured], measured, word)
    hidden = any(finding.failure.name not in measured for finding in findings)
    write_line(console, Text(summary(findings) + ("; --all lists them" if hidden else ""), style="bold"))


def _known(console: Console, project: Project) -> None:
    write_line(console, Text("Known", style="bold").append(f"  from {few(project.read)}", style="not bold dim"))
    for key in ("strategy", "checkpointing", "precision", "trainer", *needs(), *STACK):
        if key in project.left or key in project.versions:
            _row(console, f"{label(key)}:", f"{value(project, key)}  ({few(project.sources[key])})")
    _row(console, "unknown:", ", ".join(map(label, project.unknown)) or "nothing")
    for note in project.notes:
        write_line(console, Text(f"  {one_line(note)}", style="yellow"))
    console.print()


def _matches(console: Console, project: Project, findings: Sequence[Finding], measured: Measured, word: str) -> None:
    if findings:
        heading = f"{len(findings)} {word} {'match' if len(findings) == 1 else 'matches'}{RESTS.get(word, '')}"
        write_line(console, Text(heading, style="bold"))
        console.print()
    for finding in findings:
        _finding(console, project, finding, measured[finding.failure.name])
        console.print()


def _finding(console: Console, project: Project, finding: Finding, measured: Sequence[Observed]) -> None:
    failure = finding.failure
    style = "bold red" if finding.certain else "bold yellow"
    write_line(console, Text(failure.name, style=style).append(f"  {failure.title}", style="not bold default"))
    shared = [c for c in finding.cases[0].holds if all(c in case.holds for case in finding.cases)]
    _holds(console, project, shared)
    printed: set[tuple[str, str]] = set()
    for case, evidence in zip(finding.cases, measured, strict=True):
        if case is not finding.cases[0]:
            write_line(console, Text("  or", style="bold"))
        _holds(console, project, [condition for condition in case.holds if condition not in shared])
        _case(console, project, case, evidence, printed)
    _row(console, "fixed in", failure.until)
    _row(console, "details", here(f"faultline show {failure.name}"))
    for record in failure.records:
        _row(console, "", record)


def _case(console: Console, project: Project, case: Case, evidence: Observed, printed: set[tuple[str, str]]) -> None:
    """One way in which a failure may arise; `printed` are the remedies of the cases above."""
    for condition in case.open:
        _row(console, "open", undecided(project, case, condition))
    _row(console, "measured", _measured(evidence))
    for upgrade in evidence.upgrade:
        _row(console, "verified", f"{upgrade}  [first release with the fix]")
    for verdict, text, did in listed.rows(evidence.remedies, evidence.whose):
        if (verdict, text) not in printed:
            _row(console, verdict, f"{text}  [{did}]")
        printed.add((verdict, text))
    for command in evidence.commands[:1]:
        _row(console, "reproduce", here(command))


def _measured(evidence: Observed) -> str:
    """The outcomes of a case, and where they were seen: ``raises (no-grad-fn): 2 of 2 cells today``."""
    seen = [f"{evidence.today} of {count(evidence.of, 'cell')} today"]
    if evidence.of_stacks:
        last = f" (last {evidence.last})" if evidence.last and not evidence.today else ""
        seen.append(f"{evidence.stacks} of {evidence.of_stacks} monthly stacks{last}")
    if evidence.pinned:
        seen.append(f"on {', '.join(evidence.pinned)}")
    return f"{', '.join(evidence.outcomes) or 'not in these cells'}: {', '.join(seen)}"


def _holds(console: Console, project: Project, conditions: Sequence[str]) -> None:
    for condition in conditions:
        _row(console, "holds", holding(project, condition))


def _row(console: Console, label: str, text: str) -> None:
    write_line(console, Text(f"  {label}".ljust(16) + " ", style="bold").append(one_line(text), style="not bold"))
