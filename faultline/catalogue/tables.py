"""Reads a TOML file of a failure folder into frozen dataclasses, and refuses what they don't name."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from faultline.base.errors import UNREADABLE, UsageError, unknown

T = TypeVar("T")
WORDS = {str: "a text", bool: "true or false", int: "a number"}


def read(file: Path, kind: type[T]) -> T:
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
