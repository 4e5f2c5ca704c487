"""Whether an upgrade is safe, by recorded runs alone: nothing is installed, and no cell runs."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from faultline.base.markdown import headed, row
from faultline.base.packages import STACK, untagged
from faultline.base.paths import STACKS
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.observations import measured, store
from faultline.observations.store import MeasuredStack
from faultline.releases import given_stacks, side_by_side
from faultline.releases.changes import ChangeKind, Comparison, Safety
from faultline.releases.is_safe_view import UpgradeAnswer, bumped
from faultline.runs.results import Result, Rounding
from faultline.stacks import requests

LACKING = "no run with these versions is recorded: {}; without --known, the cells run"
REPLAYED = "of this upgrade, `faultline maintain replay` answers {} by {}: {}"


@dataclass(frozen=True)
class Bump:
    """One change of requirements, and what is known of it: the verdict, and why in a sentence with its record.

    `cells` are the places that is-safe runs, each behind its failure.
    """

    name: str
    base: str
    requirements: str
    verdict: Safety
    why: str
    record: str = ""
    cells: Sequence[str] = ()


@dataclass(frozen=True)
class Bumps:
    """stacks/bumps.toml: `cells` are those of the bumps without their own."""

    bump: Sequence[Bump]
    cells: Sequence[str] = ()


def answer_from_records(base: requests.Stack, candidate: str, cells: Collection[Cell]) -> UpgradeAnswer:
    """What recorded runs of both stacks say of an upgrade.

    UNKNOWN where one of the stacks is not among them, or few failures were run on both.
    """
    pins = given_stacks.known_versions(requests.parse(candidate))
    baseline = {name: version for name, version in given_stacks.expected_versions(base).items() if name in STACK}
    before = _recorded(base.name, baseline)
    wanted = baseline | pins if len(pins) == len(candidate.split()) else {candidate: "is no version"}
    after = _recorded(candidate, wanted)
    if not before or not after:
        text = ", ".join(f"{name} {version}" for name, version in (wanted if before else baseline).items())
        why = "; ".join((LACKING.format(text), *_replayed(base.name, candidate)))
        return UpgradeAnswer(candidate, base.name, (), Comparison(unusable=why))
    wanted_failures, known = {cell.failure for cell in cells}, between(before, after, cells, base.name, candidate)
    replayed = _replayed(base.name, candidate)
    if known.comparison.verdict is Safety.SAFE and any(f"answers {Safety.NOT_SAFE} " in each for each in replayed):
        return replace(known, comparison=replace(known.comparison, unusable="; ".join(replayed)))
    known = replace(known, scope=(*known.scope, *replayed))
    there = {cell.failure for cell in cells if _ran(before, cell) and _ran(after, cell)}
    if known.comparison.verdict is Safety.SAFE and len(there) < len(wanted_failures) / 2:
        few = f"of {len(wanted_failures)} failures, {len(there)} have cells that were recorded on both stacks"
        return replace(known, comparison=replace(known.comparison, unusable=few))
    return known


def between(
    before: MeasuredStack, after: MeasuredStack, cells: Iterable[Cell], baseline: str = "", candidate: str = ""
) -> UpgradeAnswer:
    """The answer about two recorded stacks, from the cells that ran on both."""
    differing = given_stacks.differing(before.versions, after.versions)
    old, new = _results(before, cells), _results(after, cells)
    ran = [cell for cell in old if cell in new]
    comparison = side_by_side.compare_results(ran, [[old[cell] for cell in ran]], [[new[cell] for cell in ran]])
    comparison = comparison if differing else Comparison(identical=True)
    scope = ("of recorded runs, each cell once: nothing ran now",)
    return UpgradeAnswer(
        candidate or after.name, baseline or before.name, differing, comparison, after.name, scope=scope
    )


def monthly_table() -> str:
    """Markdown: what the upgrade of all libraries from one recorded month to the next did to the cells of both."""
    cells = [cell for failure in store.failure_names() for cell in store.rows(failure)]
    usable = [stack for stack in measured.months() if not stack.unusable]
    rows = []
    for before, after in pairwise(usable):
        known = between(before, after, cells)
        kinds = Counter(change.kind for change in known.comparison.changes)
        changed = ", ".join(f"{kinds[kind]} `{kind}`" for kind in ChangeKind if kinds[kind]) or "nothing"
        verdict, compared = known.comparison.verdict, f"{known.comparison.compared:,}"
        rows.append(row(before.month, after.month, ", ".join(bumped(known)), verdict, compared, changed))
    return "\n".join(headed(("from", "to", "what differs", "answer", "cells", "what changed"), rows))


def past_upgrades() -> dict[str, Bump]:
    """The upgrades of stacks/bumps.toml, whose answers are known, by name."""
    document = msgspec.toml.decode((STACKS / "bumps.toml").read_bytes(), type=Bumps)
    bumps = [bump if bump.cells else replace(bump, cells=document.cells) for bump in document.bump]
    return {bump.name: bump for bump in bumps}


def _replayed(base: str, candidate: str) -> tuple[str, ...]:
    """What is known of an upgrade by a few of its cells, in lines."""
    asked = [each for each in past_upgrades().values() if (each.base, each.requirements) == (base, candidate)]
    return tuple(REPLAYED.format(each.verdict, ", ".join(each.cells), each.why) for each in asked)


def _recorded(name: str, versions: Mapping[str, str]) -> MeasuredStack | None:
    """The recorded stack of that name or month, or with these versions, by preference one that has a name."""
    for each in store.stacks().values():
        if name in (each.name, each.month) and not each.unusable:
            return each
    asked = untagged({package: version for package, version in versions.items() if package in STACK})
    alike = [each for each in store.stacks().values() if untagged(dict(each.versions)) == asked and not each.unusable]
    return max(alike, key=lambda each: each.named, default=None)


def _ran(stack: MeasuredStack, cell: Cell) -> store.Row | None:
    """The newest run of a cell on a stack."""
    of_stack = [each for each in store.rows(cell.failure).get(cell, ()) if each.stack == stack.name]
    return of_stack[-1] if of_stack else None


def _results(stack: MeasuredStack, cells: Iterable[Cell]) -> dict[Cell, Result]:
    """What cells did on a stack, as far as they ran there."""
    results = {}
    for cell in cells:
        if ran := _ran(stack, cell):
            error = store.errors().get(ran.error)
            results[cell] = Result(
                cell=cell,
                stack=stack.versions,
                outcome=ran.outcome,
                signature=ran.signature,
                detail=error.text if error else "",
                worst_parameter="",
                relative_error=None,
                expected=Expectation(),
                verdict="",
                seconds=0.0,
                evidence={},
                compared=(),
                errors=(),
                rounding=Rounding(),
                ranks=(),
            )
    return results
