"""Reads the folders of repros/: each becomes a `Failure` with all its variants, its claims by key, and its tables."""

import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from faultline.base.errors import UsageError, unknown
from faultline.base.paths import REPROS
from faultline.catalogue import tables
from faultline.catalogue.history import History
from faultline.catalogue.recognition import NEEDS, Project, Recognition, Setting
from faultline.catalogue.records import Claim, Failure, Variant


def load_module(folder: Path) -> ModuleType:
    """Import one folder's failure.py under a name of its own; its FAILURE gets all variants and the claims' keys."""
    spec = importlib.util.spec_from_file_location(f"repros.{folder.name}.failure", folder / "failure.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["FAILURE"] = whole(module.FAILURE, f"{folder.parent.name}/{folder.name}/failure.py")
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


def failure_named(name: str) -> Failure:
    """The failure of that name; refuses any other name, with all that begin with it, or the nearest."""
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
    recognition = tables.read(folder / "recognise.toml", Recognition).expanded()
    history = tables.read(folder / "history.toml", History)
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


def whole(failure: Failure, place: str) -> Failure:
    """What an author wrote, with every variant, and with the claims by their keys."""
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
    return replace(variant, **vars(named.get(variant.name) or next(fitting, Project())))
