"""Blessing: from what a run observed to a short expected.toml that says so."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from faultline.base.axes import DEVICES
from faultline.base.errors import UsageError
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import Cell, values
from faultline.cells.claims import Outcomes
from faultline.cells.expected import CONDITIONS, TRAINS, Rule, about, first_rule, holds, on_cpu, ruled, verdict
from faultline.cells.words import group_strategies
from faultline.runs.results import Result

Versions = tuple[tuple[str, str], ...]


def bless(
    failure: Failure,
    observed: Outcomes,
    versions: Mapping[str, str],
    rules: Sequence[Rule],
    cells: Collection[Cell],
    since: Versions = (),
    reasons: Mapping[Cell, str] | None = None,
) -> tuple[Rule, ...]:
    """The failure's rules after a run of some of its `cells`, which did what was observed.

    Cells that weren't run keep what the rules say of them; on a GPU, that is the CPU's where one rule, or none, is
    about both. Rules that expect all that was observed stay as they are. Otherwise those that are wrong are made
    again, or whose result has new cells: a known result keeps its `record`, `reason` and `versions`. Rules about other
    versions than this stack's stay in front. A rule of a report is measured once a cell did what it says.

    `since` has the versions that alone do what is new, such as ``(("trl", ">=1.17"),)``: of older stacks the rules say
    what they said. `reasons` are those that cells gave for being impossible.
    """
    rules = _confirmed(rules, observed, versions)
    holding = [rule for rule in rules if holds(rule, versions)]
    news = {
        cell: replace(known, versions=since) if since else known
        for cell, did in observed.items()
        if verdict(ruled(holding, cell, versions), *did) != "expected"
        for known in [_known_result(holding, *did, (reasons or {}).get(cell, ""))]
    }
    if not news:
        return tuple(rules)
    known, axes = {*cells}, values([failure])
    # A file without devices was made on the CPU and covers no other device.
    if any(rule.device for rule in rules) or any(cell.device != "cpu" for cell in observed):
        known = {replace(cell, device=device) for cell in cells for device in DEVICES}
    order = sorted(known | {*observed}, key=lambda cell: [axes[axis].index(getattr(cell, axis)) for axis in axes])
    for cell in order:
        there = on_cpu(cell)
        if (
            cell not in observed
            and there in news
            and first_rule(holding, cell, versions) == first_rule(holding, there, versions)
        ):
            news[cell] = news[there]
    if since:
        return (*_few_rules({cell: news.get(cell, TRAINS) for cell in order}, axes), *rules)
    target = {cell: news.get(cell) or _result(holding, cell) for cell in order}
    blessed = [rule for rule in rules if rule not in holding]
    # What holds in this stack only comes first, so that it hides nothing that holds in others.
    layers = [*dict.fromkeys(rule.versions for rule in holding if rule.versions), ()]
    for number, layer in enumerate(layers):
        below = [rule for rule in holding if rule.versions == layer]
        part = {cell: result if result.versions == layer else TRAINS for cell, result in target.items()}
        # What earlier layers hide may stay as it is.
        part |= {cell: _result(below, cell) for cell in part if layers.index(target[cell].versions) < number}
        blessed += _layer(below, part, [*news.values()], axes)
    return tuple(blessed)


def _confirmed(rules: Iterable[Rule], observed: Outcomes, versions: Mapping[str, str]) -> list[Rule]:
    """The rules, of which those are measured by now that a cell was seen to meet, first of all, and to fulfil."""
    every = [*rules]
    met = [(first_rule(every, cell, versions), cell, did) for cell, did in observed.items()]
    fulfilled = [rule for rule, cell, did in met if rule and verdict(ruled([rule], cell, versions), *did) == "expected"]
    return [replace(rule, not_measured=False) if rule in fulfilled else rule for rule in every]


def _layer(
    rules: Iterable[Rule], target: Mapping[Cell, Rule], news: Collection[Rule], values: Mapping[str, Sequence[Any]]
) -> list[Rule]:
    """Rules that give every cell its result: those that do and whose result has no new cells, and few for the rest."""
    right = []
    for rule in rules:
        result = _anywhere(rule)
        affected = [cell for cell in target if about(rule, cell)]
        if result not in news and all(target[cell] == result for cell in affected):
            right.append(rule)
            target = {cell: result for cell, result in target.items() if cell not in affected}
    return [*right, *_few_rules(target, values)]


def refuse(results: Sequence[Result], finished: bool) -> None:
    """Raise UsageError for a run that was interrupted, or that has invalid cells or errors without a signature."""
    if not finished:
        raise UsageError("can't bless a run that was interrupted; let it finish first")
    invalid = [result.cell.id for result in results if result.outcome == Outcome.INVALID]
    if invalid:
        more = f" and {len(invalid) - 3} more" if len(invalid) > 3 else ""
        raise UsageError(f"can't bless a run with invalid cells: {', '.join(invalid[:3])}{more}")
    for result in results:
        if result.outcome == Outcome.RAISES and result.signature == Signature.OTHER:
            error = f"{result.cell.id} raised an error that no signature in its failure.py names: {result.detail}"
            raise UsageError(f"can't bless what has no name: {error}{_named_by(result)}")
    read: dict[str, set[bool]] = {}
    for result in results:
        asked = {rank.evidence["remedy_read"] for rank in result.ranks if "remedy_read" in rank.evidence}
        read.setdefault(f"{result.cell.failure}/{result.cell.variant}", set()).update(asked)
    for name, asked in read.items():
        if asked == {False}:
            raise UsageError(f"can't bless {name}: its code never asks for that remedy, so it trains as `broken` does")


def _named_by(result: Result) -> str:
    """What to do about an error that other failures have a name for; else nothing."""
    named = [
        f"{signature!r} of {name}"
        for name, failure in failures().items()
        if (signature := failure.signature(result.detail)) not in (Signature.OTHER, *failure.also_raises)
    ]
    if not named:
        return ""
    return f"; it is {' or '.join(named)}: put that under `also_raises` in failure.py, and run the cells again"


def difference(old: str, new: str, file: Path | str) -> str:
    """What blessing changes in a file, as a unified diff."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), str(file), f"{file} (blessed)", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _result(rules: Iterable[Rule], cell: Cell) -> Rule:
    """The first rule about a cell, without its conditions on cells."""
    return _anywhere(next((rule for rule in rules if about(rule, cell)), TRAINS))


def _anywhere(rule: Rule) -> Rule:
    nowhere: dict[str, Any] = dict.fromkeys(CONDITIONS, ())
    return replace(rule, **nowhere)


def _known_result(rules: Iterable[Rule], outcome: str, signature: str, reason: str) -> Rule:
    """The result of the first rule with this outcome and signature, with its notes; else one with this reason alone."""
    plain = Rule(outcome=outcome, signature=(signature,) if signature else (), reason=reason)
    for rule in rules if outcome != Outcome.TRAINS and not reason else ():
        if rule.outcome == outcome and (signature in rule.signature or rule.signature == plain.signature):
            return replace(_anywhere(rule), not_measured=False)
    return plain


def _few_rules(target: Mapping[Cell, Rule], values: Mapping[str, Sequence[Any]]) -> list[Rule]:
    """Few rules, first match first, that give every cell its result.

    Each is about the largest group around the first failing cell without a rule. Cells of earlier rules may be inside.
    """
    rules: list[Rule] = []
    left = target
    while failing := [cell for cell, result in left.items() if result != TRAINS]:
        same = [cell for cell in failing if left[cell] == left[failing[0]]]
        others = [cell for cell in left if left[cell] != left[failing[0]]]
        orders = [[*values][i:] + [*values][:i] for i in range(len(values))]
        groups = [_widest(left[failing[0]], same, others, values, order) for order in orders]
        rules.append(max(groups, key=lambda rule: sum(about(rule, cell) for cell in same)))
        left = {cell: result for cell, result in left.items() if not about(rules[-1], cell)}
    for rule in reversed(rules):
        fewer = [other for other in rules if other is not rule]
        if all(_result(fewer, cell) == result for cell, result in target.items()):
            rules = fewer
    return rules


def _widest(
    result: Rule,
    same: Sequence[Cell],
    others: Sequence[Cell],
    values: Mapping[str, Sequence[Any]],
    order: Sequence[str],
) -> Rule:
    """A result's rule that the first cell meets, many of the same and none of the others: widened axis by axis."""

    def narrowed(rule: Rule, axis: str, choice: Iterable[Any]) -> Rule:
        condition: Mapping[str, Any] = {axis: tuple(choice)}
        return replace(rule, **condition)

    rule = result
    for axis in order:
        rule = narrowed(rule, axis, [getattr(same[0], axis)])
    for axis in order:
        anywhere = narrowed(rule, axis, ())
        excluded = {getattr(cell, axis) for cell in others if about(anywhere, cell)}
        rule = narrowed(rule, axis, (value for value in values[axis] if value not in excluded))
    group = [cell for cell in same if about(rule, cell)]
    for axis in values:
        rule = narrowed(rule, axis, sorted({getattr(cell, axis) for cell in group}, key=values[axis].index))
    for axis in reversed(tuple(values)):
        wider = narrowed(rule, axis, ())
        if not any(about(wider, cell) for cell in others):
            rule = wider
    return replace(rule, strategy=tuple(group_strategies(rule.strategy, ()).split(", "))) if rule.strategy else rule
