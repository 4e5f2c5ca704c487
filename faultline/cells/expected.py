"""What each cell is expected to do: the rules of a failure's expected.toml, and how a run is held against them."""

import functools
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from faultline import strategies
from faultline.base.axes import DEVICES, NAMES
from faultline.base.errors import UsageError, unknown
from faultline.base.packages import STACK
from faultline.base.paths import REPROS
from faultline.base.text import matches
from faultline.catalogue import Failure, loading
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells import on_gpus
from faultline.cells.cell import WORLD_SIZES, Cell, Conditions, values, within
from faultline.cells.rules import possible_cells

MEASURED = 4  # ranks: the most with which every expectation was measured
CONDITIONS = NAMES[1:]
"""The axes that a rule may narrow, by patterns; world_size holds numbers."""
# A cell without evidence is never a pass, so nobody can expect one.
EXPECTABLE = tuple(outcome.value for outcome in Outcome if outcome != Outcome.INVALID)

HEADER = """\
# What doesn't simply train here: the first rule that matches a cell says what it does; without one, it trains.
# Conditions: axes of an id (patterns), world_size (numbers), versions (PEP 440).
# Result: outcome, and any one signature; record and reason for readers. What has no device was measured on the CPU, and
# on a GPU it holds until somebody measures there; with `not_measured`, a rule says what a report says.
# `bless` rewrites this file and keeps record, reason and versions.
"""


@dataclass(frozen=True, kw_only=True)
class Rule(Conditions):
    """One ``[[rule]]``: the cells that it is about, and what they do.

    An empty condition holds for every cell. `versions` pairs a package with a PEP 440 specifier. `not_measured` says
    that the rule is what a report says, on a device where nobody has run its cells.
    """

    device: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    outcome: str
    signature: tuple[str, ...] = ()
    record: str = ""
    reason: str = ""
    not_measured: bool = False

    def __post_init__(self) -> None:
        if self.outcome not in EXPECTABLE:
            raise ValueError(unknown("outcome", self.outcome, EXPECTABLE))
        for _, specifier in self.versions:
            SpecifierSet(specifier)


TRAINS = Rule(outcome="trains")


@dataclass(frozen=True)
class ExpectedFile:
    """All of expected.toml."""

    rule: tuple[Rule, ...] = ()


class Basis(StrEnum):
    """What an expectation rests on, if its cell wasn't measured on its own device.

    Rules without a device were measured on the CPU. On a GPU they are a guess, as is a rule that a report gave, until
    observations/gpus/ has the cell; where kinds of GPUs differ there, the rules hold.
    """

    MEASURED = ""
    CPU = "cpu"
    REPORT = "report"
    GPUS_DIFFER = "gpus differ"


@dataclass(frozen=True)
class Expectation:
    """What a cell should do: any one of `signatures`, or whichever if there is none."""

    outcome: str = "trains"
    signatures: tuple[str, ...] = ()
    record: str = ""
    basis: Basis = Basis.MEASURED


def expect(rules: Sequence[Rule], cell: Cell, versions: Mapping[str, str]) -> Expectation:
    """What a cell should do: what it did on a GPU with these versions, if it was measured there, else `ruled`."""
    by_rules = ruled(rules, cell, versions)
    seen = {row.did for _, row in on_gpus.runs_of(cell, versions)}
    if not seen:
        return by_rules
    if all(verdict(by_rules, *did) == "expected" for did in seen):
        return replace(by_rules, basis=Basis.MEASURED)
    if len(seen) > 1:
        return replace(by_rules, basis=Basis.GPUS_DIFFER)
    [did] = seen
    return Expectation(did.outcome, (did.signature,) if did.signature else (), by_rules.record)


def ruled(rules: Sequence[Rule], cell: Cell, versions: Mapping[str, str]) -> Expectation:
    """What the first rule that applies says of a cell; without one, that it trains.

    No rule was measured on more than four ranks: more are expected to do what four do.
    """
    if not _exists(cell.strategy, versions):
        return Expectation(Outcome.IMPOSSIBLE)
    cell = replace(cell, world_size=min(cell.world_size, MEASURED))
    rule = first_rule(rules, cell, versions) or TRAINS
    basis = Basis.MEASURED
    if cell.device != "cpu":
        follows = not rule.device and rule == (first_rule(rules, on_cpu(cell), versions) or TRAINS)
        basis = Basis.REPORT if rule.not_measured else Basis.CPU if follows else Basis.MEASURED
    return Expectation(rule.outcome, rule.signature, rule.record, basis)


def _exists(strategy: str, versions: Mapping[str, str]) -> bool:
    """Whether these versions, as far as they are known, have a strategy."""
    return all(
        _contains(specifier, versions[name]) for name, specifier in _needed(strategy).items() if name in versions
    )


@functools.cache
def _needed(strategy: str) -> Mapping[str, str]:
    """The versions that have a strategy, by package; none are asked for one that there is none of any more."""
    return strategies.family(strategy).needs if strategy in strategies.names() else {}


def on_cpu(cell: Cell) -> Cell:
    """The same cell on the CPU."""
    return replace(cell, device="cpu")


def ruled_on_cpu(failure: Failure, cell: Cell, versions: Mapping[str, str]) -> Expectation:
    """What the rules say of the same cell on the CPU."""
    return ruled(rules(failure), on_cpu(cell), versions)


def first_rule(rules: Iterable[Rule], cell: Cell, versions: Mapping[str, str]) -> Rule | None:
    """The first rule that is about a cell and holds in this stack."""
    return next((rule for rule in rules if about(rule, cell) and holds(rule, versions)), None)


def about(rule: Rule, cell: Cell) -> bool:
    """Whether every condition on the cell is met, whatever the stack."""
    return within(cell, rule, CONDITIONS)


def holds(rule: Rule, versions: Mapping[str, str]) -> bool:
    """Whether the stack has every package that the rule names, at a version that it names."""
    if not rule.versions:
        return True
    stack = {canonicalize_name(name): version for name, version in versions.items()}
    asked = [(canonicalize_name(name), specifier) for name, specifier in rule.versions]
    return all(name in stack and _contains(specifier, stack[name]) for name, specifier in asked)


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

    Raises UsageError for whatever is wrong with the file by itself; `check` holds its names against the failure.
    """
    return loading.read_table(file, ExpectedFile).rule


def check(failure: Failure, rules: Iterable[Rule]) -> None:
    """Hold a failure's rules against what there is; raises UsageError for the first mistake.

    One that matches no cell, on any device and with any versions, is a mistake. A rule that earlier ones hide is none.
    """
    axes = values([failure])
    known = {
        **axes,
        "world_size": [*map(str, WORLD_SIZES)],
        "signature": (*failure.errors, *Signature, *signal.Signals.__members__),
        "package": [*map(canonicalize_name, STACK)],
    }
    for number, rule in enumerate(rules, 1):
        place = f"repros/{failure.name}/expected.toml: rule {number}"
        named = {axis: getattr(rule, axis) for axis in (*CONDITIONS, "signature")}
        named["package"] = [canonicalize_name(package) for package, _ in rule.versions]
        if rule.not_measured and not rule.device:
            raise UsageError(f"{place}: not_measured is for a rule with a device, on which nobody has run it")
        for kind, names in named.items():
            for name in map(str, names):
                if not any(matches(each, (name,)) for each in known[kind]):
                    raise UsageError(f"{place}: {unknown(kind, name, known[kind])}")
        among = {
            axis: [value for value in axes[axis] if matches(str(value), tuple(map(str, names)))]
            for axis in CONDITIONS
            if axis != "device" and (names := named[axis])
        }
        if next(possible_cells(failure, DEVICES[0], among), None) is None:
            asked = ", ".join(f"{axis} {' or '.join(map(str, named[axis]))}" for axis in CONDITIONS if named[axis])
            raise UsageError(f"{place}: no cell of {failure.name} has all of {asked}")


def to_toml(rules: Sequence[Rule]) -> str:
    """The file with these rules; empty without rules."""
    import tomlkit  # which takes time, and only a changed file needs it

    texts = []
    for rule in rules:
        table, versions = tomlkit.table(), tomlkit.inline_table()
        versions.update(rule.versions)
        for key, value in (vars(rule) | {"versions": versions}).items():
            if value:
                table[key] = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        texts.append(f"[[rule]]\n{table.as_string()}")
    return "\n".join([HEADER, *texts]) if rules else ""


@functools.cache
def rules(failure: Failure) -> tuple[Rule, ...]:
    """The rules of a failure's expected.toml, held against what there is."""
    known = load(REPROS / failure.name / "expected.toml")
    check(failure, known)
    return known
