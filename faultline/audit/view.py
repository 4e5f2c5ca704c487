"""The answer of an audit in words, and on the terminal: what is known, what it leaves, what helps, what is open."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.audit.conditions import AuditFinding, Case, wanted_text
from faultline.audit.contents import few
from faultline.audit.engines import OTHER_TRAINER
from faultline.audit.evidence import Measured, Observed
from faultline.audit.open_conditions import Open, deciding, key, label
from faultline.audit.project import Project
from faultline.base.axes import CHECKPOINTING
from faultline.base.console import write_line
from faultline.base.packages import STACK
from faultline.base.text import count, here, listing, one_line
from faultline.catalogue.loading import failures, needs
from faultline.cells.words import group_strategies, in_order
from faultline.projects.documents import Place
from faultline.report import claims

UNMEASURED = "none that was measured"
UNKNOWN = "unknown"
CODE = "your code"
NAMES = {OTHER_TRAINER: "one that was not measured", "trainer": "transformers' own"}
NOT_TODAY = "not on today's releases; "
STACKS = 5  # of stacks/ that a line names
RESTS = {"likely": " (some settings unknown)", "possible": " (if its open conditions hold)"}


def value(project: Project, name: str) -> str:
    """The known value of an axis, need or package."""
    if name in project.versions:
        return project.versions[name].text or "any"
    values = project.left.get(name)
    if values is None or values == {"yes", "no"}:
        return UNKNOWN
    if name == "strategy":
        return group_strategies(values, strategies.names()) or UNMEASURED
    if name in needs() and len(values) == 1:
        return needs()[name].on if "yes" in values else needs()[name].off
    shown = (NAMES.get(each, each) if name == "trainer" else each for each in in_order(values, CHECKPOINTING))
    return " or ".join(shown) or UNMEASURED


def holding(project: Project, name: str) -> str:
    """A condition that holds, with its places: ``checkpointing: reentrant (train.yaml:3)``."""
    places = dict.fromkeys(place.without_text for place in project.sources.get(name, ()))
    return one_line(f"{label(name)}: {value(project, name)} ({few([*places])})")


def undecided(project: Project, case: Case, condition: Open) -> str:
    """A condition that no file decides: ``checkpointing: unknown (fails with reentrant)``."""
    text = wanted_text(case, condition)
    if not condition.about:
        return f"{CODE}: {UNKNOWN} (fails with {text})"
    if condition.decide or condition.too_old:
        odd = " and ".join(f"{name}{value(project, name)}" for name in condition.about)
        together = f"{odd} with your other releases" if len(condition.about) < 3 else "your releases together"
        run = "older than any that was run" if condition.too_old else "not measured"
        return f"{together}: {run} (fails if {text})"
    known = dict.fromkeys(value(project, name) for name in condition.about)
    names = listing([label(name) for name in condition.about])
    releases = condition.about[0] not in ("trainer", "strategy", "checkpointing", "precision", *needs())
    return f"{names}: {', '.join(known)} ({'fails if' if releases else 'fails with'} {text})"


def message(finding: AuditFinding, measured: Sequence[Observed]) -> str:
    """A finding in one line: its title, its recipes, the conditions of its surest case, and what helps."""
    case, project = finding.cases[0], finding.project
    helps = [fate.claim.text for fate in measured[0].remedies if (fate.word, fate.claim.kind) == ("verified", "helps")]
    parts = [
        finding.failure.title,
        f"In {few(finding.recipes)}" if finding.recipes else "",
        "Holds: " + "; ".join(holding(project, name) for name in case.holds) if case.holds else "",
        "Open: " + "; ".join(undecided(project, case, each) for each in case.open) if case.open else "",
        "Helps: " + "; ".join([*measured[0].upgrade, *helps]) if measured[0].upgrade or helps else "",
        f"Details: faultline show {finding.failure.name}",
    ]
    return one_line(". ".join(filter(None, parts)))


def places(finding: AuditFinding) -> list[Place]:
    """The lines of files that state what holds for a finding's surest case; if none does, the first that was read."""
    project = finding.project
    stated = [place for name in finding.cases[0].holds for place in project.sources.get(name, ())]
    every = [place for of_name in project.sources.values() for place in of_name]
    in_files, first = ([place for place in each if place.line] for each in (stated, every))
    return list(dict.fromkeys(in_files)) or first[:1]


def to_say(findings: Sequence[AuditFinding]) -> list[str]:
    """The settings that would decide most of what is undecided, but for what the files state and leave open."""
    undecided = [finding for finding in findings if not finding.certain]
    return [key(name) for name in deciding([[_unstated(each, case) for case in each.cases] for each in undecided])]


def _unstated(finding: AuditFinding, case: Case) -> list[Open]:
    """The open conditions of a case that aren't about what the files state, nor about a setting that nothing reads."""
    unread = {"reference model"} if "trl" in finding.project.unused else set()  # as only TRL's trainers have a `beta`
    stated = finding.project.left.keys() | unread
    return [condition for condition in case.open if stated.isdisjoint(condition.about)]


def summary(findings: Sequence[AuditFinding]) -> str:
    """How many failures of the catalogue are certain and how many are open, and on what: never a clean bill."""
    words = [finding.word for finding in findings]
    likely = f", {words.count('likely')} likely" if "likely" in words else ""
    counts = f"{words.count('certain')} of {len(failures())} failures certain{likely}"
    surest = [finding.cases[0].open for finding in findings if not finding.certain]
    if not surest:
        return f"{counts}, none undecided; the others are excluded by what the files state"
    asked = to_say(findings)
    runs = sum(any(condition.decide for condition in case) for case in surest)
    measure = f"a run of your releases decides {runs}" if runs else ""
    old = sum(any(condition.too_old for condition in case) for case in surest)
    aged = f"{old} {'is' if old == 1 else 'are'} about releases older than any that was run" if old else ""
    settings = f"say {listing(asked)}" if asked else "" if runs or old else "no other setting decides them"
    return f"{counts}, {len(surest)} undecided: {'; '.join(filter(None, [settings, measure, aged]))}"


def show(
    console: Console,
    project: Project,
    findings: Sequence[AuditFinding],
    measured: Measured,
    everything: bool = False,
    only: str = "",
    recipes: Sequence[str] = (),
) -> None:
    """Print an audit: the findings that have evidence, and how many are open beside them, or `everything` of these in
    few words; or `only` one failure, in full.

    Every text of a file goes through `one_line`.
    """
    _show_known(console, project, recipes)
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


def _show_known(console: Console, project: Project, recipes: Sequence[str]) -> None:
    write_line(console, Text("Known", style="bold").append(f"  from {few(project.read)}", style="not bold dim"))
    if recipes:
        _row(console, "recipes:", f"{len(recipes)}, each judged by itself ({few(recipes)})")
    for name in ("strategy", "checkpointing", "precision", "trainer", *needs(), *STACK):
        if name in project.left or name in project.versions:
            _row(console, f"{label(name)}:", f"{value(project, name)}  ({few(project.sources[name])})")
    if not recipes:
        _row(console, "unknown:", ", ".join(map(label, project.unknown)) or "nothing")
    for note in project.notes:
        write_line(console, Text(f"  {one_line(note)}", style="yellow"))
    console.print()


def _matches(console: Console, findings: Sequence[AuditFinding], measured: Measured, word: str) -> None:
    if findings:
        heading = f"{len(findings)} {word} {'match' if len(findings) == 1 else 'matches'}{RESTS.get(word, '')}"
        write_line(console, Text(heading, style="bold"))
        console.print()
    for finding in findings:
        _finding(console, finding, measured[finding.failure.name])
        console.print()


def _few_words(console: Console, findings: Sequence[AuditFinding]) -> None:
    """Print the findings that are only possible, each on a line, with what is open for its surest case on the next."""
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


def _finding(console: Console, finding: AuditFinding, measured: Sequence[Observed]) -> None:
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
    _row(console, "measured", _measured_text(evidence))
    for upgrade in evidence.upgrade:
        _row(console, "verified", f"{upgrade}  [first release with the fix]")
    for verdict, text, did in claims.rows_with_checks(evidence.remedies, evidence.whose):
        if (verdict, text) not in printed:
            _row(console, verdict, f"{text}  [{did}]")
        printed.add((verdict, text))
    for command in evidence.commands[:1]:
        _row(console, "reproduce", here(command))


def _measured_text(evidence: Observed) -> str:
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
