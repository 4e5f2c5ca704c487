"""The result of an audit, which prints as the command shows it."""

from dataclasses import dataclass

from rich.console import Console

from faultline.audit import view
from faultline.audit.conditions import Finding
from faultline.audit.evidence import evidence
from faultline.audit.project import Project
from faultline.audit.view import Measured
from faultline.base.console import printed


@dataclass(frozen=True, repr=False)
class AuditResult:
    """The failures that nothing known of a project excludes.

    `str` is the answer of `faultline audit`, as it is written to a file.

    - `project`: what its files state
    - `findings`: the surest first, each with its `failure`, `sure`, `applies` and `cases`
    - `everything`: whether the answer also lists what only could apply
    """

    project: Project
    findings: tuple[Finding, ...]
    everything: bool = False

    @property
    def applies(self) -> tuple[str, ...]:
        """The names of the failures that apply, and not only could."""
        return tuple(finding.failure.name for finding in self.findings if finding.applies)

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints; docs/audit.md has the keys."""
        return view.as_json(self.project, self.findings, self._measured(everything=True))

    def show(self, console: Console) -> None:
        view.show(console, self.project, self.findings, self._measured(self.everything))

    def _measured(self, everything: bool) -> Measured:
        return {
            finding.failure.name: [evidence(finding.failure, case, self.project.versions) for case in finding.cases]
            for finding in self.findings
            if finding.applies or everything
        }

    def __str__(self) -> str:
        return printed(self.show)

    def __repr__(self) -> str:
        return f"AuditResult(applies={list(self.applies)!r}, findings={len(self.findings)})"
