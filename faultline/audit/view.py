"""The answer of an audit on the terminal: what is known, the failures that it leaves, what helps, and what is open."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from faultline.audit.conditions import Case, Finding
from faultline.audit.contents import few
from faultline.audit.data import Measured
from faultline.audit.evidence import Observed
from faultline.audit.project import Project
from faultline.audit.undecided import label
from faultline.audit.wording import holding, summary, undecided, value
from faultline.base.console import write_line
from faultline.base.packages import STACK
from faultline.base.text import count, here, listing, one_line
from faultline.catalogue.loading import failures, needs
from faultline.report import claims

NOT_TODAY = "not on today's releases; "
STACKS = 5  # of stacks/ that a line names
RESTS = {"likely": " (some settings unknown)", "possible": " (if its open conditions hold)"}


def show(
    console: Console,
    project: Project,
    findings: Sequence[Finding],
    measured: Measured,
    everything: bool = False,
    only: str = "",
    recipes: Sequence[str] = (),
) -> None:
    """Print an audit: the findings that have evidence, and how many are open beside them, or `everything` of these in
    few words; or `only` one failure, in full.

    Every text of a file goes through `one_line`.
    """
    _known(console, project, recipes)
    for word in ("certain", "likely", "possible"):
        of_word = [finding for finding in findings if finding.word == word]
        _matches(console, [f for f in of_word if f.failure.name in measured], measured, word)
    others = [finding for finding in findings if finding.failure.name not in measured]
    if only and not measured:
        given = project.ignored.isdisjoint((only, failures()[only].id))
        write_line(
            console, f"{only}: {'excluded by what the files state' if given else 'the project asks to ignore it'}"
        )
    if everything and not only:
        _few_words(console, others)
    hidden = "; --all lists them" if others and not everything and not only else ""
    ignored = f"; ignored: {few(sorted(project.ignored))}" if project.ignored else ""
    write_line(console, Text(f"{summary(findings)}{hidden}{ignored}", style="bold"))


def _known(console: Console, project: Project, recipes: Sequence[str]) -> None:
    write_line(console, Text("Known", style="bold").append(f"  from {few(project.read)}", style="not bold dim"))
    if recipes:
        _row(console, "recipes:", f"{len(recipes)}, each judged by itself ({few(recipes)})")
    for key in ("strategy", "checkpointing", "precision", "trainer", *needs(), *STACK):
        if key in project.left or key in project.versions:
            _row(console, f"{label(key)}:", f"{value(project, key)}  ({few(project.sources[key])})")
    if not recipes:
        _row(console, "unknown:", ", ".join(map(label, project.unknown)) or "nothing")
    for note in project.notes:
        write_line(console, Text(f"  {one_line(note)}", style="yellow"))
    console.print()


def _matches(console: Console, findings: Sequence[Finding], measured: Measured, word: str) -> None:
    if findings:
        heading = f"{len(findings)} {word} {'match' if len(findings) == 1 else 'matches'}{RESTS.get(word, '')}"
        write_line(console, Text(heading, style="bold"))
        console.print()
    for finding in findings:
        _finding(console, finding, measured[finding.failure.name])
        console.print()


def _few_words(console: Console, findings: Sequence[Finding]) -> None:
    """What is only possible, each on a line, with what is open for its surest case on the next."""
    if findings:
        heading = f"{len(findings)} possible: each if what is open holds; --failure NAME has all of one"
        write_line(console, Text(heading, style="bold"))
    for finding in findings:
        line = Text(finding.failure.name, style="bold yellow")
        write_line(console, line.append(f"  {finding.failure.title}", style="not bold default"))
        case = finding.cases[0]
        _row(console, "open", "; ".join(undecided(finding.project, case, condition) for condition in case.open))
    if findings:
        console.print()


def _finding(console: Console, finding: Finding, measured: Sequence[Observed]) -> None:
    failure, project = finding.failure, finding.project
    style = "bold red" if finding.certain else "bold yellow"
    write_line(console, Text(failure.name, style=style).append(f"  {failure.title}", style="not bold default"))
    if finding.recipes:
        _row(console, "in", few(finding.recipes))
    shared = [c for c in finding.cases[0].holds if all(c in case.holds for case in finding.cases)]
    _holds(console, project, shared)
    printed: set[tuple[str, str]] = set()
    for case, evidence in zip(finding.cases, measured, strict=True):
        if case is not finding.cases[0]:
            write_line(console, Text("  or", style="bold"))
        _holds(console, project, [condition for condition in case.holds if condition not in shared])
        _case(console, project, case, evidence, printed)
    _row(console, "fixed in", failure.until)
    _row(console, "details", f"{here(f'faultline show {failure.name}')}  (to ignore it: {failure.id})")
    for record in failure.records:
        _row(console, "", record)


def _case(console: Console, project: Project, case: Case, evidence: Observed, printed: set[tuple[str, str]]) -> None:
    """One way in which a failure may arise; `printed` are the remedies of the cases above."""
    for condition in case.open:
        _row(console, "open", undecided(project, case, condition))
        if condition.decide:
            _row(console, "decide", here(condition.decide))
    _row(console, "measured", _measured(evidence))
    for upgrade in evidence.upgrade:
        _row(console, "verified", f"{upgrade}  [first release with the fix]")
    for verdict, text, did in claims.rows_with_checks(evidence.remedies, evidence.whose):
        if (verdict, text) not in printed:
            _row(console, verdict, f"{text}  [{did}]")
        printed.add((verdict, text))
    for command in evidence.commands[:1]:
        _row(console, "reproduce", here(command))


def _measured(evidence: Observed) -> str:
    """The outcomes of a case, and where they were seen: ``raises (no-grad-fn) in 2 of 2 cells today``."""
    if not (evidence.outcomes and (evidence.today or evidence.stacks or evidence.pinned)):
        return "in none of these cells"
    did, seen = ", ".join(evidence.outcomes), []
    if evidence.today:
        seen.append(f"in {evidence.today} of {count(evidence.of, 'cell')} today")
    if evidence.stacks:
        newest = f" (last {evidence.last})" if not evidence.today else ""
        seen.append(f"on {evidence.stacks} of {evidence.of_stacks} monthly stacks{newest}")
    if evidence.pinned:
        first, more = evidence.pinned[:STACKS], len(evidence.pinned) - STACKS
        seen.append(f"on {listing([*first, f'{more} more'] if more > 0 else first)}")
    *others, last = seen
    places = f"{', '.join(others)}, and {last}" if others else last
    return f"{'' if evidence.today else NOT_TODAY}{did} {places}"


def _holds(console: Console, project: Project, conditions: Sequence[str]) -> None:
    for condition in conditions:
        _row(console, "holds", holding(project, condition))


def _row(console: Console, label: str, text: str) -> None:
    write_line(console, Text(f"  {label}".ljust(16) + " ", style="bold").append(one_line(text), style="not bold"))
