"""The answer of an audit for machines; docs/audit.md has the table of its keys."""

from __future__ import annotations

from collections.abc import Collection

from faultline import strategies
from faultline.audit.conditions import Case, Finding, words
from faultline.audit.evidence import evidence
from faultline.audit.project import Project
from faultline.catalogue import Failure
from faultline.cells.cell import CHECKPOINTING, PRECISIONS
from faultline.cells.words import ordered
from faultline.observations import remedies

Json = dict[str, object]


def as_json(project: Project, findings: Collection[Finding]) -> Json:
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
        "findings": [_finding(project, finding) for finding in findings],
    }


def _finding(project: Project, finding: Finding) -> Json:
    failure = finding.failure
    return {
        "failure": failure.name,
        "title": failure.title,
        "sure": finding.sure,
        "applies": finding.applies,
        "cases": [_case(project, failure, case) for case in finding.cases],
        "fixed": failure.until,
        "records": list(failure.records),
    }


def _case(project: Project, failure: Failure, case: Case) -> Json:
    shown = evidence(failure, case, project.versions)
    return {
        "variants": [variant.name for variant in case.variants],
        "holds": {condition: list(project.sources.get(condition, ())) for condition in case.holds},
        "if": [words(case, condition) for condition in case.open],
        "outcomes": list(shown.outcomes),
        "today": {"cells": shown.today, "of": shown.of},
        "stacks": {"shown": shown.stacks, "of": shown.of_stacks, "last": shown.last, "pinned": list(shown.pinned)},
        "upgrade": list(shown.upgrade),
        "measured": shown.measured,
        "remedies": [remedies.as_json(fate) for fate in shown.remedies],
        "repeat": list(shown.commands),
    }
