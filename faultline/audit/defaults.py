"""The defaults of training frameworks, by their releases: read from defaults.toml, which has the sources."""

import functools
import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faultline import strategies
from faultline.audit.engines import Default, Statement
from faultline.base.text import matches
from faultline.observations import ranges
from faultline.observations.ranges import Range
from faultline.projects.documents import Section, Table

TABLE = Path(__file__).with_name("defaults.toml")
TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Framework:
    """A framework, and how its configs and commands are known."""

    name: str
    settings: tuple[frozenset[str], ...]
    commands: str
    alone: bool
    defaults: tuple[Default, ...]


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads(TABLE.read_text("utf-8"))


@functools.cache
def frameworks() -> tuple[Framework, ...]:
    """Every framework of the table."""
    return tuple(
        Framework(
            name,
            tuple(frozenset(group) for group in entry.get("settings", ())),
            entry.get("commands", ""),
            entry.get("alone", False),
            tuple(_default(name, entry["package"], each) for each in entry["default"]),
        )
        for name, entry in _table().items()
    )


def _default(name: str, package: str, entry: Mapping[str, Any]) -> Default:
    lists = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Default(name, package, **(lists | {"values": frozenset(entry["values"])}))


@functools.cache
def configs() -> Mapping[str, Table]:
    """The DeepSpeed configs that frameworks bring, by the names that their settings give them."""
    return {name: config for entry in _table().values() for name, config in entry.get("configs", {}).items()}


def by_command(words: Sequence[str]) -> str:
    """The framework that a command starts; empty for none that is known."""
    names = {*words, *(Path(word).name for word in words)}
    known = (each for each in frameworks() if each.commands and any(re.fullmatch(each.commands, n) for n in names))
    return next((each.name for each in known), "")


def stated(section: Section, framework: str = "") -> Iterator[Statement]:
    """The defaults that the settings of a section leave, of its framework and of what that is built on."""
    keys = {key for key in section.data if isinstance(key, str)} | section.unknown
    lines = section.document.lines
    known = [each for each in frameworks() if each.name == framework or any(group <= keys for group in each.settings)]
    alone = any(each.alone for each in known)
    for each in known:
        for default in each.defaults if each.alone or not alone else ():
            if default.holds_for(section):
                shown = next((key for group in each.settings if group <= keys for key in sorted(group)), "")
                place = section.source(shown) if shown else section.document.place(min(lines.values(), default=1))
                yield Statement(default.axis, default.values, place, default=default)


def values_left(
    statements: Iterable[Statement], axis: str, placed: Collection[str] | None, packages: Mapping[str, Range]
) -> tuple[frozenset[str], list[Statement]]:
    """The values that defaults leave of an axis under these strategies, None if it isn't known which; and the
    statements that say it. Nothing where they say nothing of some strategy."""
    fitting = [
        statement
        for statement in statements
        if (default := statement.default) and default.axis == axis
        if not (packages.get(default.package, Range()).allowed & ranges.parse(default.versions).allowed).is_empty
    ]
    values: frozenset[str] = frozenset()
    used: list[Statement] = []
    for name in placed or strategies.names():
        here = [each for each in fitting if each.default and matches(name, each.default.strategies or ("*",))]
        if not here:
            return frozenset(), []
        values = values.union(*(each.values for each in here))
        used += here
    return values, [_with_framework(each) for each in dict.fromkeys(used)]


def _with_framework(statement: Statement) -> Statement:
    default = statement.default
    text = f"{'/'.join(sorted(statement.values))} by default of {default.framework}" if default else ""
    return replace(statement, source=replace(statement.source, text=text))
