"""The answer of an audit in SARIF 2.1.0, as code scanners exchange it: a rule for each failure that it names."""

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from faultline.audit.conditions import Finding
from faultline.audit.data import Measured
from faultline.audit.project import Project
from faultline.audit.wording import message, places
from faultline.base.version import __version__
from faultline.catalogue import Failure
from faultline.projects.documents import Place

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"certain": "error", "likely": "warning", "possible": "note"}
BASE = "%SRCROOT%"
Json = dict[str, object]


def as_sarif(project: Project, findings: Sequence[Finding], measured: Measured, summary: str) -> Json:
    """Some findings as results, for each recipe where they apply: an error if it is certain, a note if open; `summary`
    counts all there are."""
    notes = [*project.notes, summary]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "Faultline",
                        "version": __version__,
                        "rules": [_rule(finding.failure) for finding in findings],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [{"level": "note", "message": {"text": note}} for note in notes],
                    }
                ],
                "originalUriBaseIds": {BASE: {"description": {"text": "The folder in which the audit ran."}}},
                "columnKind": "unicodeCodePoints",
                "results": [
                    _result(each, measured, index)
                    for index, finding in enumerate(findings)
                    for each in (finding.applies and finding.alike) or [finding]
                ],
            }
        ],
    }


def _rule(failure: Failure) -> Json:
    page = f"repros/{failure.name}/README.md"
    return {
        "id": failure.name,
        "shortDescription": {"text": failure.title},
        "fullDescription": {"text": f"{failure.title}. Since: {failure.since}. Until: {failure.until}."},
        "help": {
            "text": f"faultline show {failure.name} prints this failure's page, {page} in Faultline's repository."
        },
        "helpUri": failure.records[0],
        "properties": {"tags": [failure.id]},
    }


def _result(finding: Finding, measured: Measured, index: int) -> Json:
    located = [location for place in places(finding) if (location := _location(place))]
    return {
        "ruleId": finding.failure.name,
        "ruleIndex": index,
        "level": LEVELS[finding.word],
        "message": {"text": message(finding, measured[finding.failure.name])},
        "locations": located[:1],
        "relatedLocations": located[1:],
    }


def _location(place: Place) -> Json | None:
    """A line of a file, below the current folder if it lies there; None for what is no file."""
    if place.path == Path():
        return None
    return {
        "physicalLocation": {"artifactLocation": artifact(place.path), "region": {"startLine": place.line}},
        "message": {"text": place.text or place.name},
    }


def artifact(path: Path) -> dict[str, str]:
    """Where a file lies: its URI from the current folder, or a whole one elsewhere."""
    whole = path.resolve()
    if whole.is_relative_to(Path.cwd()):
        return {"uri": quote(os.fsencode(whole.relative_to(Path.cwd()))), "uriBaseId": BASE}
    return {"uri": whole.as_uri()}
