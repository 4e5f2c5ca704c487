"""The result of an audit, which prints as the command shows it."""

from collections.abc import Collection
from dataclasses import dataclass

from rich.console import Console

from faultline.audit import data, github, sarif, view
from faultline.audit.conditions import Finding
from faultline.audit.data import Measured
from faultline.audit.evidence import evidence
from faultline.audit.project import Project
from faultline.audit.wording import summary
from faultline.base.console import printed


@dataclass(frozen=True, repr=False)
class AuditResult:
    """The failures that nothing known of a project excludes.

    `str` is the answer of `faultline audit`, as it is written to a file.

    - `project`: what its files state
    - `findings`: the surest first, each with its `failure`, `certain`, `applies` and `cases`
    - `everything`: whether the answer also lists what only could apply
    - `only`: the failure that it shows, and in full; empty for all that apply
    - `recipes`: the set-ups of a folder that were judged each by itself; empty where there is one
    """

    project: Project
    findings: tuple[Finding, ...]
    everything: bool = False
    only: str = ""
    recipes: tuple[str, ...] = ()

    @property
    def certain(self) -> tuple[str, ...]:
        """The names of the failures whose recorded conditions all hold."""
        return tuple(finding.failure.name for finding in self.findings if finding.certain)

    @property
    def applies(self) -> tuple[str, ...]:
        """The names of the failures that apply, and not only could."""
        return tuple(finding.failure.name for finding in self.findings if finding.applies)

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints; docs/audit.md has the keys."""
        return data.as_json(self.project, self.findings, self._measured()) | {"recipes": list(self.recipes)}

    def as_sarif(self) -> dict[str, object]:
        """What ``--format sarif`` prints: what applies, and with `everything` also what only could."""
        shown = [finding for finding in self.findings if self.everything or finding.applies]
        return sarif.as_sarif(self.project, shown, self._measured(), summary(self.findings))

    def annotations(self) -> list[str]:
        """The lines that ``--format github`` prints."""
        measured = self._measured() if self.everything else self._measured(self.applies)
        return [*github.annotations(self.findings, measured)]

    def show(self, console: Console) -> None:
        measured = self._measured((self.only,) if self.only else self.applies)
        view.show(console, self.project, self.findings, measured, self.everything, self.only, self.recipes)

    def _measured(self, names: Collection[str] | None = None) -> Measured:
        """What was measured of some failures' cases; of all, if none is named."""
        return {
            finding.failure.name: [evidence(finding.failure, case, finding.project.versions) for case in finding.cases]
            for finding in self.findings
            if names is None or finding.failure.name in names
        }

    def __str__(self) -> str:
        return printed(self.show)

    def __repr__(self) -> str:
        named = f"certain={list(self.certain)!r}, applies={list(self.applies)!r}"
        return f"AuditResult({named}, findings={len(self.findings)})"
