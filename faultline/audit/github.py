"""The answer of an audit as GitHub's workflow commands, which annotate the lines of a pull request."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from faultline.audit.conditions import Finding
from faultline.audit.data import Measured
from faultline.audit.wording import message, places, summary
from faultline.projects.documents import Place

KINDS = {"certain": "error", "likely": "warning", "possible": "notice"}


def annotations(findings: Sequence[Finding], measured: Measured) -> Iterator[str]:
    """A command for each finding that has evidence, and one that counts all of them."""
    for finding in findings:
        if finding.failure.name in measured:
            title = f"{finding.failure.name} ({finding.word})"
            text = message(finding, measured[finding.failure.name])
            yield _command(KINDS[finding.word], title, text, places(finding)[:1])
    yield _command("notice", "faultline audit", summary(findings), [])


def _command(kind: str, title: str, text: str, where: Sequence[Place]) -> str:
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
