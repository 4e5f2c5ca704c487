"""What each cell is expected to do: the rules of a failure's expected.toml, and how a run is held against them."""

from __future__ import annotations

import functools
import re
import signal
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from faultline import strategies
from faultline.base.errors import UsageError, unknown
from faultline.base.packages import STACK
from faultline.base.paths import REPROS, ROOT
from faultline.base.text import matches
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.cell import CHECKPOINTING, DEVICES, PRECISIONS, WORLD_SIZES, Cell, every_cell
from faultline.cells.rules import possible

# The axes that a rule may narrow by pattern; world_size holds numbers.
PATTERNS = ("variant", "strategy", "checkpointing", "precision", "device")
KEYS = (
    *("variant", "strategy", "checkpointing", "precision", "world_size", "device", "versions"),
    *("outcome", "signature", "record", "reason"),
)

HEADER = """\
# What doesn't simply train here: the first rule that matches a cell says what it does; without one, it trains.
# Conditions: variant, strategy, checkpointing, precision, device (patterns), world_size, versions (PEP 440).
# Result: outcome, and any one signature; record and reason for readers.
# `bless` rewrites this file and keeps record, reason and versions.
"""


@dataclass(frozen=True)
class Rule:
    """One ``[[rule]]``: the cells that it is about, and what they do.

    An empty condition holds for every cell. `versions` pairs a package with a
    PEP 440 specifier. `place` (file and rule number, for errors) doesn't make it
    another rule.
    """

    variant: tuple[str, ...] = ()
    strategy: tuple[str, ...] = ()
    checkpointing: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    world_size: tuple[int, ...] = ()
    device: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    outcome: str = "trains"
    signatures: tuple[str, ...] = ()
    record: str = ""
    reason: str = ""
    place: str = field(default="", compare=False)


@dataclass(frozen=True)
class Expectation:
    """What a cell should do: any one of `signatures`, or whichever if there is none."""

    outcome: str = "trains"
    signatures: tuple[str, ...] = ()
    record: str = ""


def expect(rules: Iterable[Rule], cell: Cell, versions: Mapping[str, str]) -> Expectation:
    """What the first rule that applies says of a cell; without one, that it trains."""
    rule = first(rules, cell, versions) or Rule()
    return Expectation(rule.outcome, rule.signatures, rule.record)


def first(rules: Iterable[Rule], cell: Cell, versions: Mapping[str, str]) -> Rule | None:
    """The first rule that is about a cell and holds in this stack."""
    return next((rule for rule in rules if about(rule, cell) and holds(rule, versions)), None)


def about(rule: Rule, cell: Cell) -> bool:
    """Whether every condition on the cell is met, whatever the stack."""
    return (not rule.world_size or cell.world_size in rule.world_size) and all(
        matches(getattr(cell, axis), getattr(rule, axis) or ("*",)) for axis in PATTERNS
    )


def holds(rule: Rule, versions: Mapping[str, str]) -> bool:
    """Whether the stack has every package that the rule names, at a version that it names."""
    if not rule.versions:
        return True
    stack: dict[str, str] = {canonicalize_name(name): version for name, version in versions.items()}
    return all(name in stack and _contains(specifier, stack[name]) for name, specifier in rule.versions)


@functools.cache
def _contains(specifier: str, version: str) -> bool:
    return SpecifierSet(specifier, prereleases=True).contains(Version(version).base_version)


def verdict(expectation: Expectation, outcome: str, signature: str) -> str:
    """Hold what a cell did against its expectation.

    Gives ``expected``, ``unexpected pass`` (it trains, and shouldn't),
    ``unexpected failure`` (it should train) or ``changed`` (it fails otherwise).
    """
    if outcome == expectation.outcome and (not expectation.signatures or signature in expectation.signatures):
        return "expected"
    if outcome == Outcome.TRAINS and expectation.outcome != Outcome.TRAINS:
        return "unexpected pass"
    return "unexpected failure" if expectation.outcome == Outcome.TRAINS else "changed"


def load(file: Path) -> tuple[Rule, ...]:
    """Read a file's rules; a missing file has none.

    Raises UsageError for whatever is wrong with the file by itself; `check`
    holds its names against the failure.
    """
    if not file.exists():
        return ()
    name = str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file)
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name}: {error}") from None
    for key in document:
        if key != "rule":
            raise UsageError(f"{name}: {unknown('key', key, ['rule'])}")
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{name}: rules are tables of a list; write [[rule]]")
    return tuple(_rule(table, f"{name}, rule {i + 1}") for i, table in enumerate(tables))


def _rule(table: dict[str, Any], place: str) -> Rule:
    for key in table:
        if key not in KEYS:
            raise UsageError(f"{place}: {unknown('key', key, KEYS)}")
    if "outcome" not in table:
        raise UsageError(f"{place}: outcome is missing")
    outcome = table["outcome"]
    # A cell without evidence is never a pass, so nobody can expect one.
    outcomes = [known.value for known in Outcome if known != Outcome.INVALID]
    if outcome not in outcomes:
        raise UsageError(f"{place}: {unknown('outcome', str(outcome), outcomes)}")
    for key in ("record", "reason"):
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"{place}: {key} {table[key]!r} is not a string")
    return Rule(
        **{axis: _values(table, axis, str, place) for axis in PATTERNS},
        world_size=_values(table, "world_size", int, place),
        versions=_versions(table.get("versions", {}), place),
        outcome=outcome,
        signatures=_values(table, "signature", str, place),
        record=table.get("record", ""),
        reason=table.get("reason", ""),
        place=place,
    )


def _values(table: dict[str, Any], key: str, kind: type, place: str) -> tuple[Any, ...]:
    """One value or a list of them; an empty list would quietly mean all, so it is refused."""
    if key not in table:
        return ()
    values = table[key] if isinstance(table[key], list) else [table[key]]
    if not values or not all(type(value) is kind and value != "" for value in values):
        what = "string" if kind is str else "whole number"
        raise UsageError(f"{place}: {key} {table[key]!r} is neither a {what} nor a list of some")
    return tuple(values)


def _versions(table: Any, place: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(table, dict):
        raise UsageError(f'{place}: versions {table!r} is not a table such as {{trl = ">=0.15"}}')
    for package, specifier in table.items():
        try:
            SpecifierSet(specifier)
        except (InvalidSpecifier, TypeError, AttributeError):
            raise UsageError(
                f"{place}: versions of {package}: {specifier!r} is not a version specifier such as '>=0.15,<1.0'"
            ) from None
    return tuple((canonicalize_name(package), specifier) for package, specifier in table.items())


def axes(failure: Failure) -> dict[str, Sequence[Any]]:
    """Every value that a rule of a failure can name, by axis."""
    return {
        "variant": [variant.name for variant in failure.variants],
        "strategy": list(strategies.names()),
        "checkpointing": CHECKPOINTING,
        "precision": PRECISIONS,
        "device": DEVICES,
        "world_size": WORLD_SIZES,
    }


def check(failure: Failure, rules: Iterable[Rule], cells: Iterable[Cell], packages: Iterable[str] = ()) -> None:
    """Hold a failure's rules against what there is; raises UsageError for the first mistake.

    `cells` are those that a rule may be about: one that matches none of them,
    on any device and with any versions, is a mistake. A rule that earlier ones
    hide is none. `packages` are the names that `versions` may use, if given.
    """
    cells, packages = list(cells), [canonicalize_name(package) for package in packages]
    known = axes(failure)
    signatures = (*failure.errors, *Signature, *signal.Signals.__members__)
    for rule in rules:
        for axis in PATTERNS:
            for pattern in getattr(rule, axis):
                if not any(matches(name, (pattern,)) for name in known[axis]):
                    raise UsageError(f"{rule.place}: {unknown(axis, pattern, known[axis])}")
        for world in rule.world_size:
            if world not in WORLD_SIZES:
                raise UsageError(f"{rule.place}: {unknown('world_size', str(world), list(map(str, WORLD_SIZES)))}")
        for signature in rule.signatures:
            if signature not in signatures:
                raise UsageError(f"{rule.place}: {unknown('signature', signature, signatures)}")
        for package, _ in rule.versions:
            if packages and package not in packages:
                raise UsageError(f"{rule.place}: {unknown('package', package, packages)}")
        anywhere = replace(rule, device=())
        if not any(about(anywhere, cell) for cell in cells):
            raise UsageError(f"{rule.place}: no cell of {failure.name} has all of {_conditions(rule)}")


def to_toml(rules: Sequence[Rule], before: str = "") -> str:
    """The file with these rules; a rule of the file as it was before keeps its text and the comment right above it."""
    import tomlkit  # which takes time, and only a changed file needs it

    def alone(table: tomlkit.items.Table) -> str:
        rules = tomlkit.aot()
        rules.append(table)
        return tomlkit.document().append("rule", rules).as_string()

    document = tomlkit.parse(before)
    tables = document.pop("rule", [])
    if not isinstance(tables, tomlkit.items.AoT):
        tables = []
    # For tomlkit, a comment above a table is the end of the table before.
    texts = [document.as_string().removeprefix(HEADER), *map(alone, tables)]
    for i in range(len(tables)):
        text = re.sub(r"(?m)(?:^[ \t]*#.*\n)*\Z", "", texts[i], count=1)
        texts[i], texts[i + 1] = text, texts[i].removeprefix(text) + texts[i + 1]
    present = {_rule(table.unwrap(), ""): text for table, text in zip(tables, texts[1:], strict=True)}
    for rule in rules:
        if rule not in present:
            table, versions = tomlkit.table(), tomlkit.inline_table()
            versions.update(rule.versions)
            values = vars(rule) | {"signature": rule.signatures, "versions": versions}
            for key in KEYS:
                if value := values[key]:
                    table[key] = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            present[rule] = alone(table)
    return "\n".join([HEADER, *(f"{present[rule].strip()}\n" for rule in rules)]) if rules else ""


def _conditions(rule: Rule) -> str:
    values = {axis: getattr(rule, axis) for axis in (*PATTERNS, "world_size")}
    return ", ".join(f"{axis} {' or '.join(map(str, some))}" for axis, some in values.items() if some)


@functools.cache
def rules(failure: Failure) -> tuple[Rule, ...]:
    """The rules of a failure's expected.toml, held against every cell that it can have."""
    known = load(REPROS / failure.name / "expected.toml")
    cells = [
        cell
        for device in DEVICES
        for cell, variant in every_cell({failure.name: failure}, device)
        if possible(cell, variant)
    ]
    check(failure, known, cells, STACK)
    return known
