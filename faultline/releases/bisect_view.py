"""What a bisect found, as the record that is kept and in lines for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from faultline.base.packages import NEEDED
from faultline.base.text import cut
from faultline.catalogue.outcomes import named
from faultline.releases.bisection import Bisection
from faultline.releases.search import Boundary, Smallest
from faultline.runs.campaigns import Measured
from faultline.stacks import requests
from faultline.stacks.environments import pins

WIDTH = 300  # characters of an error


def record(bisection: Bisection, found: Boundary, culprits: Smallest | None) -> dict[str, Any]:
    """All that a bisect found, as bisect.json has it."""
    question = bisection.question
    sides = {name: side(bisection, place) for name, place in (("before", found.before), ("after", found.after))}
    old, new = (pins(each["lock"]) if each else {} for each in sides.values())
    return {
        "failure": question.failure.name,
        "cells": [cell.id for cell in question.cells],
        "package": question.package,
        "direction": "introduced" if question.introduced else "fixed",
        "others": "dated" if question.dated else "fixed",
        "bad": [*question.bad],
        "releases": [vars(release) for release in bisection.releases],
        **sides,
        "between": [bisection.releases[place].version for place in found.between],
        "skipped": [
            {**vars(bisection.releases[place]), "why": " / ".join(dict.fromkeys(map(why, bisection.runs[place])))}
            for place in found.skipped
        ],
        "environments": bisection.environments,
        "changed": changes({*old, *new} - {question.package}, old, new) if found.found else {},
        "blame": {
            "packages": [*culprits.items],
            "minimal": culprits.minimal,
            "trials": [
                {"packages": [*names], "changes": bisection.side(measured), "why": why(measured)}
                for names, measured in bisection.trials
            ],
        }
        if culprits
        else None,
    }


def side(bisection: Bisection, place: int | None) -> dict[str, Any] | None:
    """One side of the boundary: the release, what its cells did, how many runs agree, what repeats it."""
    if place is None:
        return None
    question, runs, sides = bisection.question, bisection.runs[place], bisection.sides(place)
    typical = runs[sides.index(bisection.verdict(place))]
    lock, here = pins(typical.lock), pins("" if question.dated else "\n".join(requests.installed()))
    return {
        **vars(bisection.releases[place]),
        "shows": question.shows(typical),
        "runs": len(runs),
        "agree": sides.count(bisection.verdict(place)),
        "outcomes": {
            entry.cell.id: {"outcome": entry.outcome, "signature": entry.signature, "detail": entry.detail}
            for entry in typical.results
        },
        "stack": dict(typical.versions),
        "lock": typical.lock,
        "had_to_change": changes({*here} & {*lock} - {question.package}, here, lock),
        "repeat": repeat(bisection, typical, bisection.releases[place].version),
    }


def changes(names: Collection[str], old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, list[str]]:
    """The two versions of the packages that differ; ``none`` where there is none."""
    pairs = {name: [old.get(name, "none"), new.get(name, "none")] for name in sorted(names)}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def why(measured: Measured) -> str:
    """What a stack did, in a line: why there was no run, or each outcome with its error."""
    told = [f"{entry.did}: {entry.detail}".removesuffix(": ") for entry in measured.results]
    return cut(measured.unusable or "; ".join(dict.fromkeys(told)) or "no cell ran", WIDTH)


def repeat(bisection: Bisection, measured: Measured, version: str) -> str:
    """The command that runs a side again; a dated stack is named by the versions of what the suite imports."""
    question, found = bisection.question, pins(measured.lock)
    pinned = {question.package: version}
    if question.dated:
        pinned |= {name: found[name] for name in NEEDED if name in found and name not in ("torch", question.package)}
    stack = " ".join(f"{name}=={version}" for name, version in pinned.items())
    return f"make test-matrix CELL={','.join(cell.id for cell in question.cells)} STACK='{stack}'"


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """A record in words."""
    yield from told["cells"]
    yield ""
    yield verdict(told)
    for name in ("before", "after"):
        if told[name]:
            yield from _side(told, told[name])
    if told["before"] and told["after"]:
        yield confidence(told)
    yield (
        f"{count(told['environments'], 'environment')} for {len(told['releases'])} releases"
        f" from {_first(told)} to {_last(told)}; {_others(told)}"
    )
    for each in told["skipped"]:
        yield f"  skipped {each['version']}: {each['why']}"
    if told["between"]:
        yield "another cell of this failure may tell: VARIANT, STRATEGY or CHECKPOINTING name it"
    if told["changed"]:
        pairs = [f"{name} {' -> '.join(versions)}" for name, versions in told["changed"].items()]
        yield f"besides {told['package']}, {count(len(pairs), 'package')} changed between the two: {', '.join(pairs)}"
    yield from _blame(told)


def verdict(told: Mapping[str, Any]) -> str:
    """The answer in a sentence."""
    package, introduced = told["package"], told["direction"] == "introduced"
    before, after, between = told["before"], told["after"], told["between"]
    if before and after and not between:
        return f"{told['direction']} by {package} {_named(after)}: {_named(before)} {_shows(before)}"
    if before and after:
        return (
            f"{told['direction']} after {package} {_named(before)} and no later than {_named(after)};"
            f" {count(len(between), 'release')} between them can't tell"
        )
    one = before or after
    if one is None:
        return f"undecided: no release of {package} in the range can tell"
    if between:
        return f"undecided: {package} {_named(one)} {_shows(one)}, and what is {_beyond(told)} can't tell"
    if after:
        return f"no change: {package} {_named(after)}, the oldest in the range, {_shows(after)} as the newest"
    hint = "; name one that does with --to, or look for the fix with --fixed" if introduced else ""
    return f"no change: {package} {_named(before)}, the newest in the range, {_shows(before)}{hint}"


def confidence(told: Mapping[str, Any]) -> str:
    """How sure the pair is, in words with counts."""
    before, after = told["before"], told["after"]
    if before["agree"] == before["runs"] == after["agree"] == after["runs"]:
        return f"confidence: {before['runs']} of {before['runs']} runs on both sides"
    counts = " and ".join(f"{each['agree']} of {each['runs']} runs on {each['version']}" for each in (before, after))
    return f"confidence: {counts}; the others did something else, so the change is likely, not certain"


def _side(told: Mapping[str, Any], each: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {told['package']} {_named(each)}, {each['agree']} of {count(each['runs'], 'run')}"
    texts: dict[str, list[str]] = {}
    for cell, did in each["outcomes"].items():
        text = f"{named(did['outcome'], did['signature'])}: {cut(did['detail'], WIDTH)}".removesuffix(": ")
        texts.setdefault(text, []).append(cell)
    for text, cells in texts.items():
        yield f"    {text}" + (f" in {len(cells)} of {len(told['cells'])} cells" if len(texts) > 1 else "")
    if each["had_to_change"]:
        pairs = (f"{name} {' -> '.join(versions)}" for name, versions in each["had_to_change"].items())
        yield f"    had to change from what is installed: {', '.join(pairs)}"
    yield f"    {each['repeat']}"


def _blame(told: Mapping[str, Any]) -> Iterator[str]:
    blame = told["blame"]
    if blame is None:
        if told["changed"] and told["before"] and told["after"]:
            yield "  --resume --blame finds which of them matter"
        return
    enough = f"the change of {', '.join(blame['packages'])} is enough, the rest as in the older stack"
    doubt = "" if blame["minimal"] else "; a smaller set may be, but not every one could be tried"
    yield f"{enough}{doubt} ({count(len(blame['trials']), 'trial')})"
    for trial in blame["trials"]:
        word = {True: "changes", False: "changes nothing", None: "can't tell"}[trial["changes"]]
        yield f"  {', '.join(trial['packages'])}: {word}: {trial['why']}"


def _named(each: Mapping[str, Any]) -> str:
    return f"{each['version']} ({each['date']})" if each["date"] else each["version"]


def _shows(each: Mapping[str, Any]) -> str:
    return "shows the failure" if each["shows"] else "doesn't show it"


def _beyond(told: Mapping[str, Any]) -> str:
    return "older" if told["after"] else "newer"


def _others(told: Mapping[str, Any]) -> str:
    return {
        "dated": "the rest of the stack as of each release's date",
        "fixed": "the rest of the stack as installed, as far as it fits",
    }[told["others"]]


def _first(told: Mapping[str, Any]) -> str:
    return told["releases"][0]["version"]


def _last(told: Mapping[str, Any]) -> str:
    return told["releases"][-1]["version"]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
