"""Conditions in words, each as ``setting: value``, and the line that an audit ends with."""

from collections.abc import Sequence

from faultline import strategies
from faultline.audit.conditions import Case, Finding, wanted
from faultline.audit.contents import few
from faultline.audit.engines import OTHER_TRAINER
from faultline.audit.evidence import Observed
from faultline.audit.project import Project
from faultline.audit.undecided import Open, deciding, key, label
from faultline.base.text import listing, one_line
from faultline.catalogue.loading import failures, needs
from faultline.cells.cell import CHECKPOINTING
from faultline.cells.words import group_strategies, in_order
from faultline.projects.documents import Place

UNMEASURED = "none that was measured"
UNKNOWN = "unknown"
CODE = "your code"
NAMES = {OTHER_TRAINER: "one that was not measured", "trainer": "transformers' own"}


def value(project: Project, name: str) -> str:
    """What is known of an axis, need or package."""
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
    places = dict.fromkeys(place.where for place in project.sources.get(name, ()))
    return one_line(f"{label(name)}: {value(project, name)} ({few([*places])})")


def undecided(project: Project, case: Case, condition: Open) -> str:
    """A condition that no file decides: ``checkpointing: unknown (fails with reentrant)``."""
    text = wanted(case, condition)
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


def message(finding: Finding, measured: Sequence[Observed]) -> str:
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


def places(finding: Finding) -> list[Place]:
    """The lines of files that state what holds for a finding's surest case; if none does, the first that was read."""
    project = finding.project
    stated = [place for name in finding.cases[0].holds for place in project.sources.get(name, ())]
    every = [place for of_name in project.sources.values() for place in of_name]
    in_files, first = ([place for place in each if place.line] for each in (stated, every))
    return list(dict.fromkeys(in_files)) or first[:1]


def to_say(findings: Sequence[Finding]) -> list[str]:
    """The settings that would decide most of what is undecided, but for what the files state and leave open."""
    undecided = [finding for finding in findings if not finding.certain]
    return [key(name) for name in deciding([[_unstated(each, case) for case in each.cases] for each in undecided])]


def _unstated(finding: Finding, case: Case) -> list[Open]:
    """The open conditions of a case that aren't about what the files state."""
    stated = finding.project.left.keys()
    return [condition for condition in case.open if stated.isdisjoint(condition.about)]


def summary(findings: Sequence[Finding]) -> str:
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
