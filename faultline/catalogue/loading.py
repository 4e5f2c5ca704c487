"""Reads the folders of repros/: each becomes a `Failure` with all its variants, its claims by key, and its tables."""

import dataclasses
import functools
import importlib.util
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from faultline.base.errors import UNREADABLE, UsageError, unknown
from faultline.base.paths import REPROS
from faultline.catalogue.history import History
from faultline.catalogue.recognition import NEEDS, ProjectCondition, Recognition, Setting, Symptoms
from faultline.catalogue.records import Claim, Failure, Variant

T = TypeVar("T")
WORDS = {str: "a text", bool: "true or false", int: "a number"}


def load_module(folder: Path) -> ModuleType:
    """Import one folder's failure.py under a name of its own; its FAILURE gets all variants and the claims' keys."""
    spec = importlib.util.spec_from_file_location(f"repros.{folder.name}.failure", folder / "failure.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["FAILURE"] = complete(module.FAILURE, f"{folder.parent.name}/{folder.name}/failure.py")
    return module


@functools.cache
def failures(root: Path = REPROS) -> dict[str, Failure]:
    """Every failure by name, in the order of their names."""
    every = {file.parent.name: load(file.parent) for file in sorted(root.glob("*/failure.py"))}
    patterns: dict[str, str] = {}
    for failure in every.values():
        for name, pattern in failure.errors.items():
            if name not in failure.also_raises:
                patterns.setdefault(name, pattern)
    for key, failure in every.items():
        lent = {n: patterns[n] for n in failure.also_raises if n in patterns and n not in failure.errors}
        every[key] = replace(failure, errors={**failure.errors, **lent})
    return every


@functools.cache
def settings() -> dict[str, Setting]:
    """The settings that variants need, by name, as the folders declare them."""
    return {name: each for failure in failures().values() for name, each in failure.recognition.setting.items()}


def needs() -> dict[str, Setting]:
    """All that variants need, by name, with what it is in words, what people write for it, and what is shown."""
    every = {**NEEDS, **settings()}
    return {
        name: replace(each, text=each.text or f"`{name}`", key=each.key or name, label=each.label or each.key or name)
        for name, each in every.items()
    }


@functools.cache
def symptoms(name: str) -> Symptoms:
    """What people see of a failure."""
    return read_table(REPROS / name / "symptoms.toml", Symptoms)


def name_of_id(name: str) -> str:
    """The name of the failure with a short id; any other text as it is."""
    return next((failure.name for failure in failures().values() if failure.id == name), name)


def failure_named(name: str) -> Failure:
    """The failure of that name or short id; refuses any other name, with all that begin with it, or the nearest."""
    name = name_of_id(name)
    begin = [each for each in failures() if name and each.startswith(name)]
    if name not in failures() and len(begin) > 1:
        raise UsageError(f"{len(begin)} failures begin with {name!r}: {', '.join(begin)}")
    if name not in failures():
        raise unknown("failure", name, list(failures()))
    return failures()[name]


def load(folder: Path) -> Failure:
    """The failure of one folder. Raises UsageError, in one line, for what its files can't mean."""
    place = f"{folder.parent.name}/{folder.name}"
    failure: Failure = load_module(folder).FAILURE
    recognition = read_table(folder / "recognise.toml", Recognition).expanded()
    history = read_table(folder / "history.toml", History)
    errors = [*failure.errors, *failure.also_raises]
    known = {
        "error": errors,
        "mechanism": errors,
        "project": [variant.name for variant in failure.variants],
        "remedies": [*failure.claims],
    }
    for table, names in known.items():
        for name in getattr(recognition, table):
            if name not in names and not (table == "project" and any(fnmatchcase(each, name) for each in names)):
                raise UsageError(f"{place}/recognise.toml: {table}: {unknown('name', name, names)}")
    needed = {name for project in recognition.project.values() for name in project.needs}
    for name in needed - {*NEEDS, *recognition.setting}:
        known_needs = [*NEEDS, *recognition.setting]
        raise UsageError(f"{place}/recognise.toml: project: {unknown('need', name, known_needs)}")
    claims = dict(failure.claims)
    for key, text in recognition.remedies.items():
        claims[key] = replace(claims[key], general=text or claims[key].text)
    variants = tuple(_recognised(variant, recognition) for variant in failure.variants)
    return replace(
        failure, name=folder.name, claims=claims, variants=variants, recognition=recognition, history=history
    )


def complete(failure: Failure, place: str) -> Failure:
    """The failure that an author wrote, with every variant, and with the claims by their keys."""
    claims = dict(keyed(failure.claims, place))
    variants = every_variant(failure.variants, claims.values())
    modes = failure.checkpointing
    resumed = failure.resumed
    variants = [replace(v, checkpointing=v.checkpointing or modes, resumed=v.resumed or resumed) for v in variants]
    return replace(failure, claims=claims, variants=tuple(variants))


def keyed(groups: Mapping[str, Any], place: str) -> Iterator[tuple[str, Claim]]:
    """Each claim of the groups with its key and its source, which is the group's name if that is a link."""
    keys = set()
    for source, claims in groups.items():
        for claim in (claims,) if isinstance(claims, Claim) else claims:
            if not claim.key or claim.key in keys:
                problem = f"two claims have the key `{claim.key}`" if claim.key else f"a claim has no key: {claim.text}"
                raise UsageError(f"{place}: {problem}; name one with `key=`")
            keys.add(claim.key)
            yield claim.key, replace(claim, source=source if source.startswith("https://") else "")


def every_variant(written: tuple[Variant, ...], claims: Iterable[Claim]) -> list[Variant]:
    """The variants that an author wrote down, and those that follow: what was reported, and the remedies of claims.

    A remedy runs under the strategies of its claim, at the level of scenarios, or in a trainer if the claim is
    about that alone.
    """
    named = {variant.name: variant for variant in written}
    named.setdefault("broken", Variant("broken"))
    for claim in claims:
        where = claim.where.get("variant", "*broken")
        shown = {v.trainer for v in named.values() if v.broken and fnmatchcase(v.name, where)}
        for trainer in {""} & shown or sorted(shown):
            variant = Variant(claim.swap.get("remedy", ""), trainer, (claim.where.get("strategy", "*"),))
            if variant.remedy:
                named.setdefault(variant.name, variant)
    return sorted(named.values(), key=lambda v: (bool(v.trainer), not v.broken, v.name != "broken"))


def _recognised(variant: Variant, recognition: Recognition) -> Variant:
    """The variant with what recognise.toml says of it."""
    named = recognition.project
    fitting = (project for pattern, project in named.items() if fnmatchcase(variant.name, pattern))
    return replace(variant, **vars(named.get(variant.name) or next(fitting, ProjectCondition())))


def read_table(file: Path, kind: type[T]) -> T:
    """The file as a `kind`, or an empty `kind` if there is no such file. Raises UsageError, in one line."""
    import tomllib  # here, as ranks import the catalogue and never read these files

    place = f"{file.parent.parent.name}/{file.parent.name}/{file.name}"
    if not file.exists():
        return kind()
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except UNREADABLE as error:
        raise UsageError(f"{place}: {error}") from error
    made: T = _record(table, kind, place, "")
    return made


def _record(table: Any, kind: Any, place: str, at: str) -> Any:
    """A table as a dataclass."""
    if not isinstance(table, dict):
        raise UsageError(f"{place}: {at}: expected a table")
    kinds = typing.get_type_hints(kind)
    for key in table:
        if key not in kinds:
            raise UsageError(f"{place}: {at + ': ' if at else ''}{unknown('key', key, list(kinds))}")
    for field in dataclasses.fields(kind):
        if field.name not in table and field.default is field.default_factory is dataclasses.MISSING:
            raise UsageError(f"{place}: {at + ': ' if at else ''}`{field.name}` is missing")
    values = {key: _value(value, kinds[key], place, f"{at}.{key}" if at else key) for key, value in table.items()}
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"{place}: {at}: {error}") from error


def _value(value: Any, kind: Any, place: str, at: str) -> Any:
    """A value as its annotation wants it; a single value may stand for a list of one, and a table for pairs."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:  # with None, which TOML can't say
        return _value(value, arguments[0], place, at)
    if origin is tuple:
        if typing.get_origin(arguments[0]) is tuple:
            return tuple(_value(value, Mapping[str, str], place, at).items())
        if value == []:
            raise UsageError(f"{place}: {at}: an empty list says nothing")
        if not isinstance(value, list):
            return (_value(value, arguments[0], place, at),)
        return tuple(_value(each, arguments[0], place, f"{at} {number}") for number, each in enumerate(value, 1))
    if origin is Mapping or origin is dict:
        if not isinstance(value, dict):
            raise UsageError(f"{place}: {at}: expected a table")
        return {key: _value(each, arguments[1], place, f"{at}.{key}") for key, each in value.items()}
    if dataclasses.is_dataclass(kind):
        return _record(value, kind, place, at)
    if type(value) is not kind:
        raise UsageError(f"{place}: {at}: expected {WORDS[kind]}")
    return value
