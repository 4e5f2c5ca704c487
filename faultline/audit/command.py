"""The audit of a training project: which failures of the catalogue it may have; nothing of it is run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from faultline.audit import view
from faultline.audit.conditions import findings
from faultline.audit.evidence import evidence
from faultline.audit.project import read_project
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED


@dataclass(frozen=True)
class Request:
    """Files and folders to audit, or an environment: the active one, or that of an interpreter."""

    files: Sequence[str] = ()
    environment: bool = False
    python: str = ""
    everything: bool = False
    json: bool = False


def run(request: Request) -> int:
    """Exit code 1 if a failure of the catalogue applies to the project, 0 if none does or one only could."""
    project = read_project(list(request.files), request.environment, request.python)
    matches = findings(project)
    detailed = [finding for finding in matches if finding.applies or request.everything or request.json]
    measured = {
        finding.failure.name: [evidence(finding.failure, case, project.versions) for case in finding.cases]
        for finding in detailed
    }
    if request.json:
        print(json.dumps(view.as_json(project, matches, measured), indent=2))
    else:
        view.show(Console(), project, matches, measured)
    return EXIT_UNEXPECTED if any(finding.applies for finding in matches) else EXIT_AS_EXPECTED
