"""What is known of a training project: what its files say, put together, each with the place that it stands on."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline import defaults, known, pins, projects, ranges, settings
from faultline.engines import Told
from faultline.errors import UsageError
from faultline.pins import Pin
from faultline.ranges import Range
from faultline.report import one_line

OTHER_NORM = "own max_grad_norm"
MOST = 3  # files and places that are named where many are meant


@dataclass(frozen=True)
class Setup:
    """What is known: for each axis or need the values that are left, for each package its range of versions.

    What isn't there isn't known. `sources` has the places for each of them. `notes` are what a reader should know.
    """

    left: Mapping[str, frozenset[str]] = field(default_factory=dict)
    versions: Mapping[str, Range] = field(default_factory=dict)
    sources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    read: tuple[str, ...] = ()


def of(given: list[str], environment: bool, python: str = "") -> Setup:
    """Read files, folders and, if it is asked for or nothing else is, what is installed in the active environment.

    `python` is another environment, or its interpreter.
    Raises UsageError for a file that says nothing of versions or settings, unless it was only found in a folder.
    """
    found: list[tuple[str, list[Told]]] = []
    versions: list[Pin] = []
    read, others = [], []
    for path, name, named in projects.files(given):
        try:
            if (path / "pyvenv.cfg").is_file():
                versions += pins.environment(pins.in_folder(path), name)
                read.append(name)
                continue
            document = projects.read(path, name)
            told, own = settings.told(document), pins.told(document)
        except UsageError:
            if named:
                raise
            told = own = None
        if told is None and own is None:
            if named:
                raise UsageError(
                    f"{name} is none of: requirements or a lock file, an accelerate config, a DeepSpeed "
                    "config, training arguments in YAML or JSON"
                )
            others.append(name)
            continue
        found += [told] if told else []
        versions += own or []
        read.append(name)
    if given and not read:
        raise UsageError(f"there is nothing of a training project in {few(given)}")
    notes = []
    if environment or python or not given:
        prefix = pins.of_python(python) if python else pins.active()
        versions += pins.environment(pins.in_folder(prefix), "installed")
        read.append(f"what is installed in {prefix}")
        if not python and prefix == Path(sys.prefix):
            notes.append("no other environment is active, so it is Faultline's own: activate yours, or --python PATH")
    setup = merged(found, versions)
    return Setup(setup.left, setup.versions, setup.sources, (*notes, *setup.notes, *_passed(others)), tuple(read))


def _passed(others: list[str]) -> list[str]:
    return [f"passed over, as they say nothing of it: {few(others)}"] if others else []


def merged(files: Iterable[tuple[str, list[Told]]], versions: Iterable[Pin] = ()) -> Setup:
    """What files leave of each axis, each of them of a kind.

    Files of one kind are taken for alternatives, of which any may be what runs; what kinds leave must hold together.
    """
    kinds: dict[str, list[dict[str, frozenset[str]]]] = {}
    sources: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    for kind, found in files:
        kinds.setdefault(kind, []).append(_by_axis(found))
        for told in found:
            sources[told.axis] = (*sources.get(told.axis, ()), told.source)
            notes += [f"{told.source}: {told.note}"] if told.note else []
    left: dict[str, frozenset[str]] = {}
    for axis in sources:
        alternatives = [own for own in kinds.values() if all(axis in each for each in own)]
        if not alternatives:
            if axis == defaults.UNNAMED:
                continue
            notes.append(f"{axis}: not all of several files say it, so it is taken as not known")
            continue
        told_by_kind = [frozenset.union(*(each[axis] for each in own)) for own in alternatives]
        shared = frozenset.intersection(*told_by_kind)
        if not shared and all(told_by_kind):
            shared = frozenset.union(*told_by_kind)
            notes.append(f"{axis}: these exclude each other, and either may be what runs: {few(sources[axis])}")
        left[axis] = shared
    unnamed = left.pop(defaults.UNNAMED, None)
    sources = {axis: tuple(dict.fromkeys(own)) for axis, own in sources.items() if axis in left}
    packages: dict[str, list[Pin]] = {}
    for pin in versions:
        if pin.note:
            notes.append(f"{pin.source}: {pin.note}")
        else:
            packages.setdefault(pin.package, []).append(pin)
    kept = {}
    for package, pinned in packages.items():
        range_ = Range()
        for pin in pinned:
            range_ = ranges.both(range_, pin.range)
        sources[package] = tuple(dict.fromkeys(pin.source for pin in pinned))
        if range_.empty:
            notes.append(f"no version of {package} fits all of: {few(sources[package])}; it is taken as not known")
        else:
            kept[package] = range_
    named, package = defaults.mode(left, kept)
    if unnamed and named in left.get("checkpointing", ()):
        left["checkpointing"] = frozenset([named])
        whose = tuple(f"{source}, {named} by default" for source in sources[package])
        sources["checkpointing"] = (*sources["checkpointing"], *whose)
    if defaults.NORM in left:
        left[OTHER_NORM] = defaults.unlike(left.pop(defaults.NORM), kept.get("deepspeed", Range()))
        sources[OTHER_NORM] = sources.pop(defaults.NORM)
    torch = kept.get("torch")
    if torch and not torch.holds(ranges.public(known.pinned()["torch"])):
        own = [moment.date for moment in known.ran().moments if torch.holds(ranges.public(moment.versions["torch"]))]
        also = (
            f"; torch{torch.text} is that of {', '.join(own)} alone" if own else f", and nothing with torch{torch.text}"
        )
        notes.append(f"nearly everything was measured with torch {known.pinned()['torch']}{also}")
    return Setup(left, kept, sources, tuple(dict.fromkeys(notes)))


def _by_axis(found: Iterable[Told]) -> dict[str, frozenset[str]]:
    """What one file leaves of each axis: what all of its places leave, or where these exclude each other, any."""
    axes: dict[str, list[frozenset[str]]] = {}
    for told in found:
        axes.setdefault(told.axis, []).append(told.values)
    # Nothing is left by a way to train that was not measured, and what else is told changes nothing of that.
    return {
        axis: frozenset.intersection(*own) or (frozenset.union(*own) if all(own) else frozenset())
        for axis, own in axes.items()
    }


def few(texts: Sequence[str]) -> str:
    """Some texts in a line, the first of many."""
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return one_line("; ".join(texts[:MOST]) + more)
