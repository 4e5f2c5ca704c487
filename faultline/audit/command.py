"""The audit of a training project: which failures of the catalogue it may have; nothing of it is run."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console

from faultline import strategies
from faultline.audit import sarif, view
from faultline.audit.conditions import AuditFinding, Case, doubt, findings, surest_first, wanted_text
from faultline.audit.evidence import Measured, Observed, evidence
from faultline.audit.project import Project, read_recipes
from faultline.audit.view import summary, to_say
from faultline.base.axes import CHECKPOINTING, PRECISIONS
from faultline.base.console import print_commands, printed
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.catalogue.loading import failure_named, failures
from faultline.cells.words import in_order
from faultline.observations import remedies
from faultline.observations.answers import CellAnswer

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
    findings: tuple[AuditFinding, ...]
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
        """The answer of ``--json``; docs/audit.md has the table of its keys."""
        axes = {"strategy": strategies.names(), "checkpointing": CHECKPOINTING, "precision": PRECISIONS}
        sources, measured = _sources(self.project), self._measure()
        return {
            "read": list(self.project.read),
            "known": {
                name: {"values": in_order(values, axes.get(name, ())), "from": sources[name]}
                for name, values in self.project.left.items()
            },
            "versions": {
                name: {"range": each.text, "from": sources[name]} for name, each in self.project.versions.items()
            },
            "unknown": self.project.unknown,
            "say": to_say(self.findings),
            "notes": list(self.project.notes),
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
                for finding in self.findings
            ],
            "recipes": list(self.recipes),
        }

    def as_sarif(self) -> dict[str, object]:
        """The answer of ``--format sarif``: the findings that apply, and with `everything` also those that only
        could."""
        shown = [finding for finding in self.findings if self.everything or finding.applies]
        return sarif.as_sarif(self.project, shown, self._measure(), summary(self.findings))

    def annotations(self) -> list[str]:
        """The lines that ``--format github`` prints."""
        measured = self._measure() if self.everything else self._measure(self.applies)
        return [*sarif.annotations(self.findings, measured)]

    def show(self, console: Console) -> None:
        measured = self._measure((self.only,) if self.only else self.applies)
        view.show(console, self.project, self.findings, measured, self.everything, self.only, self.recipes)

    def _measure(self, names: Collection[str] | None = None) -> Measured:
        """The evidence of some failures' cases; of all, if none is named."""
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


def _sources(project: Project) -> dict[str, list[str]]:
    return {name: _places(project, name) for name in project.sources}


def _places(project: Project, name: str) -> list[str]:
    return [str(place) for place in project.sources.get(name, ())]


def _case(case: Case, evidence: Observed, sources: Mapping[str, Sequence[str]]) -> dict[str, object]:
    return {
        "variants": [variant.name for variant in case.variants],
        "holds": {condition: list(sources.get(condition, ())) for condition in case.holds},
        "open": [
            {"about": list(each.about), "wanted": wanted_text(case, each), "decide": each.decide} for each in case.open
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
    project = replace(project, notes=(*project.notes, *unknown), ignored=project.ignored & known)
    return AuditResult(project, tuple(matches), request.everything, only, tuple(recipes))


def in_recipes(recipes: Mapping[str, Project]) -> list[AuditFinding]:
    """The findings of each recipe put together: of a failure the surest, with the recipes for which it is as sure."""
    answers: dict[object, list[AuditFinding]] = {}
    groups: dict[str, list[tuple[str, AuditFinding]]] = {}
    shows: dict[object, dict[tuple[str, object], CellAnswer]] = {}
    for name, project in recipes.items():
        asked = frozenset((package, each.text) for package, each in project.versions.items())
        key = (frozenset(project.left.items()), asked, project.ignored)
        if key not in answers:
            answers[key] = findings(replace(project, shows=shows.setdefault(asked, {})))
        for each in answers[key]:
            groups.setdefault(each.failure.name, []).append((name, replace(each, project=project)))
    merged = []
    for among in groups.values():
        surest = min((each for _, each in among), key=lambda each: doubt(each.cases[0]))
        alike = tuple(replace(each, recipes=(name,)) for name, each in among if each.word == surest.word)
        merged.append(replace(surest, recipes=tuple(each.recipes[0] for each in alike), alike=alike))
    return surest_first(merged)
