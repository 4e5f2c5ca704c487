"""Which strategies a text names: its settings, or what its tracebacks and messages show."""

import functools
import re
from collections.abc import Callable, Iterable

from faultline import strategies
from faultline.base.text import matches, small_letters
from faultline.strategies import Family, Table

Rows = tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]
"""Patterns, each with the strategies that it stands for, which are patterns as well."""

_NAME = re.compile(r"\b(?=\w*[A-Z]\w*[A-Z])[A-Za-z]+(?:-?\d)?\b")  # ``ZeRO-3``, ``DDP``, ``DeepSpeed``


def _joined(*tables: Callable[[Family], Table]) -> Rows:
    """Some tables of all families one after the other, of each the rows of the most sharded family first."""
    families = sorted(strategies.families().values(), key=lambda family: -family.order)
    return tuple(
        (re.compile(pattern), names)
        for table in tables
        for family in families
        for pattern, names in table(family).items()
    )


@functools.cache
def requests() -> Rows:
    """What settings ask for: strategies first, then engines in no certain form."""
    return _joined(lambda family: family.settings, lambda family: family.engine_settings)


@functools.cache
def messages() -> Rows:
    """What engines print."""
    return _joined(lambda family: family.messages)


@functools.cache
def traces() -> Rows:
    """What engines leave in a traceback: their messages, then their frames."""
    return _joined(lambda family: family.messages, lambda family: family.frames)


@functools.cache
def presets() -> dict[str, tuple[str, ...]]:
    """The accelerate configs that TRL's command line knows by name, and their strategies."""
    return {name: each for family in strategies.families().values() for name, each in family.presets.items()}


@functools.cache
def switches() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """The training arguments that switch a strategy on, with the strategies that are left if they are on, or off.

    Both leave open whether the strategy's family is what runs.
    """
    every = frozenset(strategies.names())
    return {
        key: (every.difference(family.strategies) | {name}, every - {name})
        for family in strategies.families().values()
        for key, name in family.switches.items()
    }


@functools.cache
def aliases() -> dict[str, str]:
    """What people call strategies, in small letters and digits, and what they are called here."""
    return {name: each for family in strategies.families().values() for name, each in family.aliases.items()}


def mentioned(text: str) -> frozenset[str]:
    """The strategies that a sentence of ours mentions, as in "an adapter under ZeRO-1 or FSDP2"; code says nothing."""
    words = (small_letters(word) for word in _NAME.findall(re.sub(r"`[^`]*`", "", text)))
    patterns = tuple(aliases().get(word, f"{word}*") for word in words)
    return frozenset(name for name in strategies.names() if matches(name, patterns))


def configured(**settings: object) -> frozenset[str]:
    """The strategies that the settings of an engine leave: `zero_stage` or `fsdp_version`, and what refines them."""
    return frozenset(name for family in strategies.families().values() for name in family.configured(settings))


def asked_for(texts: Iterable[str]) -> tuple[str, ...]:
    """The strategies that settings name; nothing if they name several."""
    asked: set[tuple[str, ...]] = set()
    for text in texts:
        for pattern, names in requests():
            if match := pattern.search(text):
                asked.add(tuple(name.format(match[match.lastindex or 0]) for name in names))
                break
    narrow = {names for names in asked if not any(other != names and within(other, names) for other in asked)}
    return narrow.pop() if len(narrow) == 1 else ()


def within(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether all that one matches is matched by the other."""
    return all(matches(name, other) for name in strategies.names() if matches(name, one))
