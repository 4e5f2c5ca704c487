"""The audit of a training project: which failures of the catalogue it may have; nothing of it is run."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console

from faultline.audit.conditions import findings
from faultline.audit.groups import in_recipes
from faultline.audit.project import read_recipes
from faultline.audit.result import AuditResult
from faultline.base.console import print_commands
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.catalogue.loading import failure_named, failures

Form = Literal["text", "json", "sarif", "github"]


@dataclass(frozen=True)
class AuditRequest:
    """Files and folders to audit, or an environment: the active one, or that of an interpreter.

    The answer lists what applies, or in few words `everything` that could, or all of `only` one failure.
    """

    files: Sequence[str] = ()
    environment: bool = False
    python: str = ""
    everything: bool = False
    only: str = ""
    form: Form = "text"


def run(request: AuditRequest) -> int:
    """Print the answer: exit code 1 if a failure of the catalogue is certain, 0 if none is."""
    result = answer(request)
    if request.form == "json":
        print(json.dumps(result.as_json(), indent=2))
    elif request.form == "sarif":
        print(json.dumps(result.as_sarif(), indent=2))
    elif request.form == "github":
        print_commands(result.annotations())
    else:
        result.show(Console())
    return EXIT_UNEXPECTED if result.certain else EXIT_AS_EXPECTED


def answer(request: AuditRequest) -> AuditResult:
    """Read a project; raises UsageError where there is nothing to read, and for an unknown failure."""
    only = failure_named(request.only).name if request.only else ""
    project, recipes = read_recipes(list(request.files), request.environment, request.python)
    matches = in_recipes(recipes) if recipes else findings(project)
    known = {word for failure in failures().values() for word in (failure.name, failure.id)}
    unknown = tuple(f"ignore: no failure is called {name}" for name in sorted(project.ignored - known))
    project = replace(project, notes=(*project.notes, *unknown))
    return AuditResult(project, tuple(matches), request.everything, only, tuple(recipes))
