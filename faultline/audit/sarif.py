"""The answer of an audit for code scanners, as SARIF 2.1.0, and for a pull request, as GitHub's workflow commands."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from faultline.audit.conditions import AuditFinding
from faultline.audit.evidence import Measured
from faultline.audit.project import Project
from faultline.audit.view import message, places, summary
from faultline.base.version import __version__
from faultline.catalogue import Failure
from faultline.projects.documents import Place

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {"certain": "error", "likely": "warning", "possible": "note"}
BASE = "%SRCROOT%"
Json = dict[str, object]
KINDS = {"certain": "error", "likely": "warning", "possible": "notice"}


def as_sarif(project: Project, findings: Sequence[AuditFinding], measured: Measured, total: str) -> Json:
    """Some findings as results, for each recipe where they apply: an error if it is certain, a note if open; `total`
    counts all there are."""
    notes = [*project.notes, total]
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


def _result(finding: AuditFinding, measured: Measured, index: int) -> Json:
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


def annotations(findings: Sequence[AuditFinding], measured: Measured) -> Iterator[str]:
    """A command for each finding that has evidence, and one that counts all of them."""
    for finding in findings:
        if finding.failure.name in measured:
            title = f"{finding.failure.name} ({finding.word})"
            text = message(finding, measured[finding.failure.name])
            yield _workflow_command(KINDS[finding.word], title, text, places(finding)[:1])
    yield _workflow_command("notice", "faultline audit", summary(findings), [])


def _workflow_command(kind: str, title: str, text: str, where: Sequence[Place]) -> str:
    """``::error file=train.yaml,line=3,title=...::...``."""
    properties = {"title": title}
    for place in where:
        if place.path != Path():
            whole = place.path.resolve()
            below = whole.relative_to(Path.cwd()) if whole.is_relative_to(Path.cwd()) else whole
            properties = {"file": below.as_posix(), "line": str(place.line), **properties}
    listed = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{kind} {listed}::{_escaped(text)}"


def _escaped(text: str, more: str = "") -> str:
    """A text without what GitHub takes for the end of a command, or of a property."""
    for mark in f"%\r\n{more}":
        text = text.replace(mark, f"%{ord(mark):02X}")
    return text
