"""Advisories: what was measured of each failure, as a file in the OSV schema."""

import datetime
import shutil
from collections.abc import Collection, Sequence

import msgspec
from packaging.version import Version

from faultline import strategies
from faultline.base.errors import EXIT_AS_EXPECTED
from faultline.base.markdown import BEGIN
from faultline.base.packages import TODAY
from faultline.base.paths import GENERATED, REPROS
from faultline.catalogue import Change, Failure, Variant
from faultline.catalogue.loading import failures, needs
from faultline.cells import words
from faultline.cells.cell import CHECKPOINTING, PRECISIONS, Cell, default_world
from faultline.observations import history, measured, releases, remedies
from faultline.observations.history import Observation

FOLDER = GENERATED / "advisories"
VERSION = "1.7.5"  # of the schema, whose later state in tests/maintain/osv/ allows the ids of local databases
PREFIX = "x_FAULTLINE-"
Json = dict[str, object]


def run() -> int:
    """Write the advisory of every failure, in place of those that were there."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for failure in failures().values():
        (FOLDER / file_name(failure)).write_bytes(encoded(failure))
    print(f"{FOLDER}: {len(failures())} advisories")
    return EXIT_AS_EXPECTED


def file_name(failure: Failure) -> str:
    return f"{PREFIX}{failure.name}.json"


def encoded(failure: Failure) -> bytes:
    """The content of an advisory's file."""
    return msgspec.json.format(msgspec.json.encode(advisory(failure)))


def advisory(failure: Failure) -> Json:
    """A failure in OSV: what is in its record, its rules and the committed runs."""
    outcomes = measured.outcomes(failure)
    broken = [cell for cell in outcomes if cell.broken and cell.world_size == default_world(cell)]
    today = [cell for cell in broken if history.shows(failure, cell, outcomes[cell])]
    return {
        "schema_version": VERSION,
        "id": f"{PREFIX}{failure.name}",
        "modified": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "summary": failure.title,
        "details": story(failure),
        "affected": affected(failure, broken),
        "references": [
            {"type": "REPORT" if "/issues/" in record else "WEB", "url": record} for record in failure.records
        ],
        "database_specific": {
            "since": failure.since,
            "until": failure.until,
            "measured_with": measured.pinned(),
            "today": {
                "happens_under": words.in_words(today, [cell for cell in broken if releases.possible(failure, cell)]),
                "outcomes": sorted({str(outcomes[cell]) for cell in today}),
                "cells": len(today),
                "of": sum(releases.possible(failure, cell) for cell in broken),
            },
            "conditions": [_conditions(v) for v in failure.variants if v.broken and (v.needs or v.look_for)],
            "remedies": [remedies.as_json(fate) for fate in remedies.remedies(failure, list(outcomes))],
            "repeat": [f"faultline run --failure {failure.name}"]
            + ([f"faultline reproduce {failure.name}"] if failure.reported else []),
        },
    }


def story(failure: Failure) -> str:
    """The story of the failure's README, without its title and what was measured."""
    readme = (REPROS / failure.name / "README.md").read_text(encoding="utf-8")
    return readme.partition(BEGIN)[0].partition("\n")[2].strip()


def _conditions(variant: Variant) -> Json:
    return {
        "variant": variant.name,
        **({"needs": [needs()[need].text for need in variant.needs]} if variant.needs else {}),
        **({"look_for": variant.look_for} if variant.look_for else {}),
    }


def affected(failure: Failure, broken: Collection[Cell]) -> list[Json]:
    """The packages in which the failure was measured, one entry for each fix and set of versions that showed it."""
    groups: dict[tuple[str, Change | None, Change | None, frozenset[Version]], list[Cell]] = {}
    for cell in broken:
        fix = releases.fixed(failure, cell)
        name = fix.package if fix else history.package(failure, cell)
        if shown := frozenset(s.versions[name] for s in history.of(failure, cell) if s.shows and name in s.versions):
            began = history.turn(failure.history.began, cell)
            groups.setdefault((name, began, fix, shown), []).append(cell)
    return [_affected(failure, name, began, fix, cells) for (name, began, fix, _), cells in groups.items()]


def _affected(failure: Failure, name: str, began: Change | None, fix: Change | None, cells: Collection[Cell]) -> Json:
    runs = [sample for cell in cells for sample in history.of(failure, cell) if name in sample.versions]
    shown = sorted({sample.versions[name] for sample in runs if sample.shows})
    entry: Json = {"package": {"ecosystem": "PyPI", "name": name, "purl": f"pkg:pypi/{name}"}}
    between = [s.versions[name] for s in runs if shown[0] < s.versions[name] < shown[-1]]
    if fix or (len(shown) > 1 and all(_at(runs, name, version) for version in between)):
        end = {"fixed": fix.version} if fix else {"last_affected": str(shown[-1])}
        entry["ranges"] = [{"type": "ECOSYSTEM", "events": [{"introduced": str(shown[0])}, end]}]
    entry["versions"] = [str(version) for version in shown]
    inside = {s.versions[name] for s in runs if shown[0] < s.versions[name] < Version(fix.version if fix else "0")}
    otherwise = [str(version) for version in sorted(inside - {*shown})]
    entry["database_specific"] = {
        "variants": words.ordered((c.variant for c in cells), [v.name for v in failure.variants]),
        "strategies": words.ordered((c.strategy for c in cells), strategies.names()),
        "checkpointing": words.ordered((c.checkpointing for c in cells), CHECKPOINTING),
        "precision": words.ordered((c.precision for c in cells), PRECISIONS),
        "measured": _measured(name, runs, shown, began, fix),
        **({"ended_otherwise": otherwise} if otherwise else {}),
    }
    return entry


def _at(runs: Collection[Observation], name: str, version: Version) -> bool:
    """Whether any cell that could tell showed the failure with a version."""
    shows = [sample.shows for sample in runs if sample.versions[name] == version and sample.shows is not None]
    return True in shows or not shows


def _measured(
    name: str, runs: Collection[Observation], shown: Sequence[Version], began: Change | None, fix: Change | None
) -> str:
    """How far the versions of an entry are what was run, in a sentence."""
    first = "the first that is named is the oldest that was run, which need not be the one that brought it"
    if began:
        first = f"{began.version} is the first release with it, found by `{began.measured_by}`"
    if fix:
        return f"{fix.version} is the first release without it, found by `{fix.measured_by}`; {first}"
    if not began and {sample.stack for sample in runs if sample.shows} == {TODAY}:
        return f"only {name} {shown[-1]} was run, with today's other packages; of older and newer ones nothing is known"
    if len(shown) == 1:
        return f"only {name} {shown[0]} was run, with the other packages of many months; of others nothing is known"
    return f"the releases under `versions` were run, and those between them are taken to do the same; {first}"
