"""The findings of several recipes put together: each failure once, where it is the surest."""

from collections.abc import Mapping
from dataclasses import replace

from faultline.audit.conditions import Finding, doubt, findings, surest_first
from faultline.audit.project import Project


def in_recipes(recipes: Mapping[str, Project]) -> list[Finding]:
    """The findings of each recipe put together: of a failure the surest, with the recipes for which it is as sure."""
    answers: dict[object, list[Finding]] = {}
    groups: dict[str, list[tuple[str, Finding]]] = {}
    shows: dict[object, dict[tuple[str, object], tuple[bool | None, str]]] = {}
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
