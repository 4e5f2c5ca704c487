"""Blessing: from what a run observed to the shortest expected.toml that says so."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

from faultline import strategies
from faultline.catalogue import Failure, failures
from faultline.errors import UsageError
from faultline.expectations import Rule, about, expect, first, holds, to_toml, verdict
from faultline.matrix import CHECKPOINTING, DEVICES, PRECISIONS, Cell, matches
from faultline.oracle import Outcome

# In the order in which boxes grow: a rule is rather about one variant than about one world size.
AXES = ("world_size", "precision", "device", "checkpointing", "strategy", "variant")
TRAINS = Rule()

Box = tuple[frozenset[Any], ...]  # the values of each axis: a box holds every cell of their product


@dataclass(frozen=True)
class Grid:
    """The cells as bits of whole numbers: which have a value, by axis, and which have a result.

    A result is a rule without conditions on cells.
    """

    cells: tuple[Cell, ...]
    masks: tuple[dict[Any, int], ...]
    results: dict[Rule, int]
    all: int


@dataclass(frozen=True)
class Part:
    """A box that may become a rule; `needs` are the cells for whose sake it would."""

    result: Rule
    box: Box
    needs: int


def rules_from(observed: Mapping[Cell, tuple[str, str]]) -> tuple[Rule, ...]:
    """A short ordered list of rules that gives every observed cell its outcome and signature, first match first.

    Cells that weren't observed may come out either way.
    """
    order = functools.partial(_place, sorted({cell.variant for cell in observed}))
    return _cover({cell: _result(*observed[cell]) for cell in sorted(observed, key=order)}, exceptions=True)


def bless(
    failure: Failure,
    observed: Mapping[Cell, tuple[str, str]],
    versions: Mapping[str, str],
    rules: Sequence[Rule],
    cells: Iterable[Cell],
) -> str:
    """The failure's new expected.toml after a run of some of its `cells`, or nothing where every cell trains.

    Cells that weren't run keep what the rules say of them. Rules that expect all
    that was observed stay as they are. Otherwise they are made anew: a result
    that was known keeps its `record`, `reason` and `versions`, and rules
    about other versions than this stack's stay in front, word by word.
    """
    holding = [rule for rule in rules if holds(rule, versions)]
    news = {
        cell: _known_result(holding, *result)
        for cell, result in observed.items()
        if cell.failure == failure.name and verdict(expect(holding, cell, versions), *result) != "expected"
    }
    if not news:
        return to_toml(rules)
    known = {cell for cell in cells if cell.failure == failure.name}
    # A file that doesn't tell devices apart was made on the CPU and says nothing of others.
    if any(rule.device for rule in rules) or any(cell.device != "cpu" for cell in observed):
        known = {replace(cell, device=device) for cell in known for device in DEVICES}
    known |= {cell for cell in observed if cell.failure == failure.name}
    order = functools.partial(_place, [variant.name for variant in failure.variants])
    target = {cell: news.get(cell) or _bare(first(holding, cell, versions)) for cell in sorted(known, key=order)}
    made = [rule for rule in rules if rule not in holding]
    # What holds in this stack only comes first, so that it hides nothing that holds in others.
    layers = [*dict.fromkeys(rule.versions for rule in holding if rule.versions), ()]
    for number, layer in enumerate(layers):
        below = [rule for rule in holding if rule.versions == layer]
        part = {cell: result if result.versions == layer else TRAINS for cell, result in target.items()}
        hidden = [cell for cell, result in target.items() if layers.index(result.versions) < number]
        made += _cover(part | {cell: _bare(first(below, cell, versions)) for cell in hidden}, exceptions=not layer)
    return to_toml(made)


def refuse(results: Sequence[Mapping[str, Any]], finished: bool) -> None:
    """Raise UsageError for a run that must not be blessed: interrupted, with cells that prove nothing, or with errors
    that no signature names."""
    if not finished:
        raise UsageError("can't bless a run that was interrupted; let it finish first")
    invalid = [result["id"] for result in results if result["outcome"] == Outcome.INVALID]
    if invalid:
        more = f" and {len(invalid) - 3} more" if len(invalid) > 3 else ""
        raise UsageError(f"can't bless a run with invalid cells: {', '.join(invalid[:3])}{more}")
    for result in results:
        if result["outcome"] == Outcome.RAISES and result.get("signature") == "other":
            told = f"{result['id']} raised an error that no signature in its failure.py names: {result['detail']}"
            raise UsageError(f"can't bless what has no name: {told}{_named_by(result)}")


def _named_by(result: Mapping[str, Any]) -> str:
    """What to do about an error that other failures have a name for; else nothing."""
    found = {name: failure.signature(result["detail"]) for name, failure in failures().items()}
    named = [
        f"{signature!r} of {name}"
        for name, signature in found.items()
        if signature not in ("other", *failures()[name].elsewhere)
    ]
    return f"; it is {' or '.join(named)}: put that into `elsewhere`, and run the cells again" if named else ""


def difference(old: str, new: str, file: Path | str) -> str:
    """What blessing changes in a file, as a unified diff."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), str(file), f"{file} (blessed)", lineterm="")
    return "".join(f"{line}\n" for line in lines)


def _result(outcome: str, signature: str) -> Rule:
    return Rule(outcome=outcome, signatures=(signature,) if signature else ())


def _bare(rule: Rule | None) -> Rule:
    """What a rule says, without the cells that it says it of."""
    anywhere: dict[str, Any] = dict.fromkeys(AXES, ())
    return replace(rule, **anywhere, place="", text="") if rule else TRAINS


def _known_result(rules: Iterable[Rule], outcome: str, signature: str) -> Rule:
    """The result as a rule knows it already, with all that was noted of it, or a plain one."""
    plain = _result(outcome, signature)
    same = (
        r for r in rules if r.outcome == outcome and (signature in r.signatures or r.signatures == plain.signatures)
    )
    return plain if outcome == Outcome.TRAINS else _bare(next(same, plain))


def _place(variants: Sequence[str], cell: Cell) -> tuple[int, ...]:
    """Where a cell stands in the matrix."""
    names = {"strategy": strategies.names(), "checkpointing": CHECKPOINTING, "precision": PRECISIONS, "device": DEVICES}
    places = (list(known).index(getattr(cell, axis)) for axis, known in ({"variant": variants} | names).items())
    return (*places, cell.world_size)


def _cover(target: Mapping[Cell, Rule], exceptions: bool) -> tuple[Rule, ...]:
    """Cover all cells that don't train, box by box, each time with the most cells for the fewest words.

    With `exceptions`, cells that train may get a rule of their own in front of a wider one.
    """
    grid = _grid(target)
    pool = [
        parts
        for result in grid.results
        if result != TRAINS
        for box in _boxes(grid, result)
        for parts in _candidates(grid, result, box, exceptions)
    ]
    # A candidate's worth changes only with the cells that still need it.
    worth = functools.cache(lambda number, *needs: _worth(grid, pool[number], needs))
    rules: list[tuple[Rule, Rule, int]] = []
    done = 0
    while grid.all & ~grid.results.get(TRAINS, 0) & ~done:
        best = max(range(len(pool)), key=lambda number: worth(number, *[part.needs & ~done for part in pool[number]]))
        for part in pool[best]:
            if not part.needs & ~done:
                continue
            # What earlier rules decide is no obstacle any more.
            box = _grow(grid, part.box, grid.all & ~grid.results[part.result] & ~done, range(len(AXES)))
            rule = replace(part.result, **_conditions(grid, box, part.needs & ~done))
            mask = sum(1 << i for i, cell in enumerate(grid.cells) if about(rule, cell))
            rules.append((rule, part.result, mask))
            done |= mask
    for entry in reversed(rules):
        without = [other for other in rules if other is not entry]
        if _reproduces(grid, without):
            rules = without
    return tuple(rule for rule, _, _ in rules)


def _grid(target: Mapping[Cell, Rule]) -> Grid:
    masks: tuple[dict[Any, int], ...] = tuple({} for _ in AXES)
    results: dict[Rule, int] = {}
    for i, (cell, result) in enumerate(target.items()):
        results[result] = results.get(result, 0) | 1 << i
        for axis, values in zip(AXES, masks, strict=True):
            value = getattr(cell, axis)
            values[value] = values.get(value, 0) | 1 << i
    return Grid(tuple(target), masks, results, (1 << len(target)) - 1)


def _reproduces(grid: Grid, rules: Iterable[tuple[Rule, Rule, int]]) -> bool:
    left = grid.all
    for _, result, mask in rules:
        if left & mask & ~grid.results[result]:
            return False
        left &= ~mask
    return not left & ~grid.results.get(TRAINS, 0)


def _inside(grid: Grid, box: Box, but: int | None = None) -> int:
    """The cells of a box, with all values of the axis `but`."""
    inside = grid.all
    for axis, values in enumerate(box):
        if axis != but and len(values) < len(grid.masks[axis]):
            inside &= functools.reduce(int.__or__, (grid.masks[axis][value] for value in values), 0)
    return inside


def _grow(grid: Grid, box: Box, forbidden: int, order: Iterable[int]) -> Box:
    """Give a box all the values that it can have, axis after axis, without a forbidden cell."""
    grown = list(box)
    for axis in order:
        slab = _inside(grid, tuple(grown), axis) & forbidden
        grown[axis] = frozenset(value for value, mask in grid.masks[axis].items() if not slab & mask)
    return tuple(grown)


def _boxes(grid: Grid, result: Rule) -> Iterator[Box]:
    """Boxes with cells of one result alone that can't be larger, so that every such cell is in one."""
    orders = list(permutations([axis for axis, masks in enumerate(grid.masks) if len(masks) > 1]))
    own = left = grid.results[result]
    seen = set()
    while left:
        cell = grid.cells[(left & -left).bit_length() - 1]
        seed = tuple(frozenset([getattr(cell, axis)]) for axis in AXES)
        for box in dict.fromkeys(_grow(grid, seed, grid.all & ~own, order) for order in orders):
            left &= ~_inside(grid, box)
            if box not in seen:
                seen.add(box)
                yield box


def _candidates(grid: Grid, result: Rule, box: Box, exceptions: bool) -> Iterator[tuple[Part, ...]]:
    """The box as a rule, and wider ones behind a rule for all cells in them that have another result."""
    own = grid.results[result]
    yield (Part(result, box, own & _inside(grid, box)),)
    narrow = [axis for axis, values in enumerate(box) if len(values) < len(grid.masks[axis])]
    for axes in (chosen for size in range(1, len(narrow) + 1) for chosen in combinations(narrow, size)):
        wide = tuple(frozenset(grid.masks[axis]) if axis in axes else values for axis, values in enumerate(box))
        inside = _inside(grid, wide)
        others = inside & ~own
        other, mask = next((found, mask) for found, mask in grid.results.items() if mask & others)
        if others & ~mask or (other == TRAINS and not exceptions):
            continue
        hull = tuple(frozenset(value for value, m in masks.items() if m & others) for masks in grid.masks)
        if not _inside(grid, hull) & ~mask:
            front = _grow(grid, hull, grid.all & ~mask, range(len(AXES)))
            yield Part(other, front, others), Part(result, wide, own & inside)


def _worth(grid: Grid, parts: tuple[Part, ...], needs: tuple[int, ...]) -> float:
    """Cells that a candidate would newly cover, per rule and value that it would take to write."""
    cells, words = 0, 0
    for part, need in zip(parts, needs, strict=True):
        if need:
            cells |= need if part.result != TRAINS else 0
            words += 2 + sum(len(values) for values in _conditions(grid, part.box, need).values())
    return cells.bit_count() / max(words, 1)


def _conditions(grid: Grid, box: Box, needs: int) -> dict[str, Any]:
    """What to write for a box: nothing for an axis that it has all values of, else the values that are needed."""
    conditions: dict[str, Any] = {}
    for axis, allowed, masks in zip(AXES, box, grid.masks, strict=True):
        if len(allowed) == len(masks):
            continue
        needed = tuple(value for value, mask in masks.items() if mask & needs)
        if axis in ("variant", "strategy"):
            names = tuple(strategies.names()) if axis == "strategy" else tuple(masks)
            needed = _patterns(names, frozenset(masks) - allowed, needed)
        conditions[axis] = tuple(sorted(needed)) if axis == "world_size" else needed
    return conditions


@functools.cache
def _patterns(names: tuple[str, ...], banned: frozenset[str], needed: tuple[str, ...]) -> tuple[str, ...]:
    """Few patterns that match all needed names and none that is banned, in the order of the names.

    A pattern must stand for two names or more, and for hardly more than are needed.
    """
    hits = {
        pattern: frozenset(name for name in names if matches(name, (pattern,)))
        for name in needed
        for part in re.finditer(r"[A-Za-z]+|\d+|.", name)
        for pattern in (f"{name[: part.end()]}*", f"*{name[part.start() :]}")
    }
    wanted = frozenset(needed)
    useful = {p: h for p, h in hits.items() if not h & banned and len(h & wanted) > 1 and len(h) <= 2 * len(h & wanted)}
    useful |= {name: frozenset([name]) for name in needed}
    chosen: dict[str, int] = {}
    left = wanted
    while left:
        best = min(useful, key=lambda pattern: (-len(useful[pattern] & left), len(useful[pattern]), pattern))
        chosen[best] = min(needed.index(name) for name in useful[best] & left)
        left -= useful[best]
    return tuple(sorted(chosen, key=lambda pattern: chosen[pattern]))
