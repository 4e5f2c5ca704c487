"""Cells and strategies in few words."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.cells.cell import Cell, default_world


def in_words(shown: Sequence[Cell], among: Sequence[Cell]) -> str:
    """The places of some of many cells in one text, as `in_few_words` has them."""
    return "; ".join(in_few_words(shown, among))


def in_few_words(shown: Sequence[Cell], among: Sequence[Cell]) -> list[str]:
    """The places of some of many cells; bf16 is named only where it makes a difference."""
    plain = {replace(cell, precision="fp32") for cell in shown}
    alike = {p for p in plain if all((c in shown) for c in among if replace(c, precision="fp32") == p)}
    named = [*alike, *(cell for cell in shown if replace(cell, precision="fp32") not in alike)]
    cells = {replace(cell, precision="fp32") for cell in among} | {*named}
    names = {cell.strategy for cell in cells}
    every = "any strategy" if len(names) == len(strategies.names()) else group_strategies(names, ())
    return [re.sub(r"all \d+ strategies", every, text) for text in places(named, cells)]


def command(cell: str, stack: str = "") -> str:
    """What repeats exactly one cell, on a stack as it was asked for; nothing for what a shell would misread."""
    if not re.fullmatch(r"[A-Za-z0-9_./-]+", cell) or not re.fullmatch(r"[\w.=<>!~+,@:/\[\] -]*", stack, re.ASCII):
        return ""
    return f"faultline run --cell {cell}" + (f" --stack '{stack}'" if stack else "")


def in_order(values: Iterable[str], known: Sequence[str]) -> list[str]:
    """Distinct values in a known order, with unknown ones behind."""
    distinct = dict.fromkeys(values)
    return [v for v in known if v in distinct] + sorted(v for v in distinct if v not in known)


def group_strategies(names: Iterable[str], among: Collection[str]) -> str:
    """Strategies in few words: ``zero2*`` where every strategy that it matches is meant."""
    left, known = in_order(names, strategies.names()), strategies.names()
    if len(left) > 1 and set(left) == set(among):
        return f"all {len(left)} strategies"
    words = {}
    prefixes = {name[: part.end()] for name in known for part in re.finditer(r"[a-z]+|\d|-", name)}
    for prefix in sorted(prefixes, key=lambda prefix: (len(prefix), prefix)):
        family = [name for name in known if name.startswith(prefix)]
        if len(family) > 1 and all(name in left for name in family):
            words[f"{prefix}*"] = known.index(family[0])
            left = [name for name in left if name not in family]
    words |= {name: known.index(name) if name in known else len(known) for name in left}
    return ", ".join(sorted(words, key=lambda word: words[word]))


def places(there: Collection[Cell], among: Collection[Cell]) -> list[str]:
    """Some of many cells in words; an axis is left out where it makes no difference.

    Another world size than the default is named only for what the default doesn't show.
    """
    variants, modes = ({getattr(cell, axis) for cell in among} for axis in ("variant", "checkpointing"))
    default = {_spot(cell) for cell in there if cell.world_size == default_world(cell)}
    by_place: dict[tuple[str, ...], dict[str, dict[str, list[str]]]] = {}
    for cell in sorted(there, key=order):
        world = "" if cell.world_size == default_world(cell) else f"w{cell.world_size}"
        if world and _spot(cell) in default:
            continue
        precision = cell.precision if cell.precision != "fp32" else ""
        by_mode = by_place.setdefault((precision, world, *cell.extras), {}).setdefault(cell.variant, {})
        by_mode.setdefault(cell.checkpointing, []).append(cell.strategy)
    everywhere = {cell.strategy for cell in among}
    texts: dict[str, list[str]] = {}  # the variants of each text
    for which, by_variant in by_place.items():
        for variant, by_mode in by_variant.items():
            same: dict[str, list[str]] = {}
            for mode, names in by_mode.items():
                same.setdefault(group_strategies(names, everywhere), []).append(mode)
            for group, alike in same.items():
                where = ", ".join(filter(None, (*(alike if modes - {*alike} else ()), *which)))
                texts.setdefault(f"{group} ({where})" if where else group, []).append(variant)
    return [f"{text} in {', '.join(alike)}" if variants - {*alike} else text for text, alike in texts.items()]


def _spot(cell: Cell) -> tuple[str, ...]:
    return cell.variant, cell.strategy, cell.checkpointing, cell.precision, *cell.extras


def order(cell: Cell) -> tuple[object, ...]:
    names = strategies.names()
    return (
        cell.world_size != default_world(cell),
        cell.precision != "fp32",
        len(cell.extras),
        cell.variant,
        CHECKPOINTING.index(cell.checkpointing) if cell.checkpointing in CHECKPOINTING else -1,
        names.index(cell.strategy) if cell.strategy in names else -1,
        cell.world_size,
        cell.device,
    )
