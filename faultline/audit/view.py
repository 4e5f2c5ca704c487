"""The answer of an audit, on the terminal and for machines: what is known, the failures that it leaves, what helps."""

import re
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.audit.conditions import Case, Finding, words
from faultline.audit.evidence import Observed
from faultline.audit.project import OTHER_NORM, Project, few
from faultline.base.packages import STACK
from faultline.base.text import count, here, one_line
from faultline.catalogue.loading import needs
from faultline.cells.cell import CHECKPOINTING, PRECISIONS
from faultline.cells.words import grouped, ordered
from faultline.observations import remedies
from faultline.report import remedies as listed

BEHIND = re.compile(r"(:\d+) .*$")  # a line's number, and the text that stands there
LABELS = {"no gradient_clipping": "gradient_clipping", OTHER_NORM: "max_grad_norm changed"}
UNMEASURED = "none that was measured"

Measured = Mapping[str, Sequence[Observed]]
"""The evidence of each case of a finding, by the name of its failure."""


def show(console: Console, project: Project, findings: Sequence[Finding], measured: Measured) -> None:
    """Print an audit: the findings that have evidence, and how many there are beside them.

    Every text of a file goes through `one_line`.
    """
    _known(console, project)
    certain = [finding for finding in findings if finding.sure]
    likely = [finding for finding in findings if finding.applies and not finding.sure]
    possible = [finding for finding in findings if not finding.applies]
    if not certain and not likely:
        _line(console, Text("No match: no failure of the catalogue applies to what is known.", style="bold green"))
    _matches(console, project, certain, measured, "certain", "")
    _matches(console, project, likely, measured, "likely", " (some settings unknown)")
    if all(finding.failure.name in measured for finding in possible):
        _matches(console, project, possible, measured, "possible", " (each if its open conditions hold)")
    else:
        could = f"{count(len(possible), 'failure')} could apply, depending on what is unknown; --all lists them"
        _line(console, Text(could, style="dim"))


def _known(console: Console, project: Project) -> None:
    _line(console, Text("Known", style="bold").append(f"  from {few(project.read)}", style="not bold dim"))
    for key in ("strategy", "checkpointing", "precision", "trainer", *needs()):
        if key in project.left:
            _row(console, LABELS.get(key, key), f"{_values(project, key)}  ({few(project.sources[key])})")
    for name in STACK:
        if name in project.versions:
            _row(console, name, f"{project.versions[name].text or 'any'}  ({few(project.sources[name])})")
    _row(console, "unknown", ", ".join(LABELS.get(key, key) for key in project.unknown) or "nothing")
    for note in project.notes:
        _line(console, Text(f"  {one_line(note)}", style="yellow"))
    console.print()


def _matches(
    console: Console, project: Project, findings: Sequence[Finding], measured: Measured, kind: str, rest: str
) -> None:
    if findings:
        heading = f"{len(findings)} {kind} {'match' if len(findings) == 1 else 'matches'}{rest}"
        _line(console, Text(heading, style="bold"))
        console.print()
    for finding in findings:
        _finding(console, project, finding, measured[finding.failure.name])
        console.print()


def _finding(console: Console, project: Project, finding: Finding, measured: Sequence[Observed]) -> None:
    failure = finding.failure
    style = "bold red" if finding.sure else "bold yellow"
    _line(console, Text(failure.name, style=style).append(f"  {failure.title}", style="not bold default"))
    shared = [c for c in finding.cases[0].holds if all(c in case.holds for case in finding.cases)]
    _holds(console, project, shared)
    printed: set[tuple[str, str]] = set()
    for case, evidence in zip(finding.cases, measured, strict=True):
        if case is not finding.cases[0]:
            _line(console, Text("  or", style="bold"))
        _holds(console, project, [condition for condition in case.holds if condition not in shared])
        _case(console, case, evidence, printed)
    _row(console, "fixed in", failure.until)
    _row(console, "details", here(f"faultline show {failure.name}"))
    for record in failure.records:
        _row(console, "", record)


def _case(console: Console, case: Case, evidence: Observed, printed: set[tuple[str, str]]) -> None:
    """One way in which a failure may arise; `printed` are the remedies of the cases above."""
    for condition in case.open:
        _row(console, "if", words(case, condition))
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
    """Conditions that hold, each with its places."""
    for condition in conditions:
        known = project.versions[condition].text if condition in project.versions else f" {_values(project, condition)}"
        places = dict.fromkeys(BEHIND.sub(r"\1", source) for source in project.sources[condition])
        _row(console, "holds", f"{LABELS.get(condition, condition)}{known} ({few([*places])})")


def _values(project: Project, key: str) -> str:
    """The values that are left of an axis or need."""
    values = project.left[key]
    if key == "strategy":
        return grouped(values, strategies.names()) or UNMEASURED
    if key == "no gradient_clipping" and len(values) == 1:
        return "not set" if "yes" in values else "set"
    return "unknown" if values == {"yes", "no"} else " or ".join(ordered(values, CHECKPOINTING)) or UNMEASURED


def as_json(project: Project, findings: Sequence[Finding], measured: Measured) -> dict[str, object]:
    """The answer for machines; docs/audit.md has the table of its keys."""
    axes = {"strategy": strategies.names(), "checkpointing": CHECKPOINTING, "precision": PRECISIONS}
    sources = {key: list(places) for key, places in project.sources.items()}
    return {
        "read": list(project.read),
        "known": {
            key: {"values": ordered(values, axes.get(key, ())), "from": sources[key]}
            for key, values in project.left.items()
        },
        "versions": {name: {"range": each.text, "from": sources[name]} for name, each in project.versions.items()},
        "unknown": project.unknown,
        "notes": list(project.notes),
        "findings": [
            {
                "failure": finding.failure.name,
                "title": finding.failure.title,
                "sure": finding.sure,
                "applies": finding.applies,
                "cases": [
                    _case_as_json(project, case, evidence)
                    for case, evidence in zip(finding.cases, measured[finding.failure.name], strict=True)
                ],
                "fixed": finding.failure.until,
                "records": list(finding.failure.records),
            }
            for finding in findings
        ],
    }


def _case_as_json(project: Project, case: Case, evidence: Observed) -> dict[str, object]:
    return {
        "variants": [variant.name for variant in case.variants],
        "holds": {condition: list(project.sources.get(condition, ())) for condition in case.holds},
        "if": [words(case, condition) for condition in case.open],
        "outcomes": list(evidence.outcomes),
        "today": {"cells": evidence.today, "of": evidence.of},
        "stacks": {
            "shown": evidence.stacks,
            "of": evidence.of_stacks,
            "last": evidence.last,
            "pinned": list(evidence.pinned),
        },
        "upgrade": list(evidence.upgrade),
        "measured": evidence.measured,
        "remedies": [remedies.as_json(fate) for fate in evidence.remedies],
        "repeat": list(evidence.commands),
    }


def _row(console: Console, label: str, text: str) -> None:
    _line(console, Text(f"  {label}".ljust(16) + " ", style="bold").append(one_line(text), style="not bold"))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
