"""The answer of an audit as JSON; docs/audit.md has the table of its keys."""

from collections.abc import Mapping, Sequence

from faultline import strategies
from faultline.audit.conditions import Case, Finding, wanted
from faultline.audit.evidence import Observed
from faultline.audit.project import Project
from faultline.audit.wording import to_say
from faultline.cells.cell import CHECKPOINTING, PRECISIONS
from faultline.cells.words import in_order
from faultline.observations import remedies

Measured = Mapping[str, Sequence[Observed]]
"""The evidence of each case of a finding, by the name of its failure."""


def as_json(project: Project, findings: Sequence[Finding], measured: Measured) -> dict[str, object]:
    """The answer for programs."""
    axes = {"strategy": strategies.names(), "checkpointing": CHECKPOINTING, "precision": PRECISIONS}
    sources = _sources(project)
    return {
        "read": list(project.read),
        "known": {
            name: {"values": in_order(values, axes.get(name, ())), "from": sources[name]}
            for name, values in project.left.items()
        },
        "versions": {name: {"range": each.text, "from": sources[name]} for name, each in project.versions.items()},
        "unknown": project.unknown,
        "say": to_say(findings),
        "notes": list(project.notes),
        "findings": [
            {
                "failure": finding.failure.name,
                "id": finding.failure.id,
                "title": finding.failure.title,
                "recipes": list(finding.recipes),
                "places": {
                    each.recipes[0]: {name: _places(each.project, name) for name in each.cases[0].holds}
                    for each in finding.alike
                },
                "certain": finding.certain,
                "applies": finding.applies,
                "cases": [
                    _case(case, evidence, _sources(finding.project))
                    for case, evidence in zip(finding.cases, measured[finding.failure.name], strict=True)
                ],
                "fixed": finding.failure.until,
                "records": list(finding.failure.records),
            }
            for finding in findings
        ],
    }


def _sources(project: Project) -> dict[str, list[str]]:
    return {name: _places(project, name) for name in project.sources}


def _places(project: Project, name: str) -> list[str]:
    return [str(place) for place in project.sources.get(name, ())]


def _case(case: Case, evidence: Observed, sources: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        "variants": [variant.name for variant in case.variants],
        "holds": {condition: list(sources.get(condition, ())) for condition in case.holds},
        "open": [
            {"about": list(each.about), "wanted": wanted(case, each), "decide": each.decide} for each in case.open
        ],
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
