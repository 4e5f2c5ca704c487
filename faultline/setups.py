"""What is known of a training project: what its files say, put together, each with the place that it stands on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from faultline import known, pins, projects, ranges, settings
from faultline.engines import Told
from faultline.errors import UsageError
from faultline.pins import Pin
from faultline.ranges import Range
from faultline.report import one_line

MOST = 5  # files that are named where many are meant


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


def of(given: list[str], environment: bool) -> Setup:
    """Read files, folders and, if it is asked for or nothing else is, what is installed beside this process.

    Raises UsageError for a file that says nothing of versions or settings, unless it was only found in a folder.
    """
    found: list[Told] = []
    versions: list[Pin] = []
    read, others = [], []
    for path, named in projects.files(given):
        try:
            if (path / "pyvenv.cfg").is_file():
                versions += pins.environment(pins.in_folder(path), one_line(path))
                read.append(one_line(path))
                continue
            document = projects.read(path)
            told, own = settings.told(document), pins.told(document)
        except RecursionError:
            raise UsageError(f"{one_line(path)} is nested too deeply") from None
        except UsageError:
            if named:
                raise
            told = own = None
        if told is None and own is None:
            if named:
                raise UsageError(
                    f"{one_line(path)} is none of: requirements or a lock file, an accelerate config, a DeepSpeed "
                    "config, training arguments in YAML or JSON"
                )
            others.append(one_line(path))
            continue
        found += told or []
        versions += own or []
        read.append(one_line(path))
    if given and not read:
        raise UsageError(f"there is nothing of a training project in {', '.join(map(one_line, given))}")
    if environment or not given:
        versions += pins.environment(pins.installed(), "installed")
        read.append("what is installed")
    setup = merged(found, versions)
    return Setup(setup.left, setup.versions, setup.sources, (*setup.notes, *_passed(others)), tuple(read))


def _passed(others: list[str]) -> list[str]:
    if not others:
        return []
    named = ", ".join(others[:MOST]) + (f" and {len(others) - MOST} more" if len(others) > MOST else "")
    return [f"passed over, as they say nothing of it: {named}"]


def merged(found: Iterable[Told], versions: Iterable[Pin] = ()) -> Setup:
    """What several places leave of each axis: what all leave, or where they exclude each other, what any does."""
    left: dict[str, frozenset[str]] = {}
    sources: dict[str, tuple[str, ...]] = {}
    notes: list[str] = []
    by_axis: dict[str, list[Told]] = {}
    for told in found:
        by_axis.setdefault(told.axis, []).append(told)
        notes += [f"{told.source}: {told.note}"] if told.note else []
    for axis, own in by_axis.items():
        shared = frozenset.intersection(*(told.values for told in own))
        if not shared and len(own) > 1:
            shared = frozenset.union(*(told.values for told in own))
            where = "; ".join(dict.fromkeys(told.source for told in own))
            notes.append(f"these exclude each other, and either may be what runs: {where}")
        left[axis] = shared
        sources[axis] = tuple(dict.fromkeys(told.source for told in own))
    packages: dict[str, list[Pin]] = {}
    for pin in versions:
        packages.setdefault(pin.package, []).append(pin)
    kept = {}
    for package, pinned in packages.items():
        range_ = Range()
        for pin in pinned:
            range_ = ranges.both(range_, pin.range)
        sources[package] = tuple(dict.fromkeys(pin.source for pin in pinned))
        if range_.empty:
            notes.append(
                f"no version of {package} fits all of: {'; '.join(sources[package])}; it is taken as not known"
            )
        else:
            kept[package] = range_
    torch = kept.get("torch")
    if torch and not torch.holds(ranges.public(known.pinned()["torch"])):
        notes.append(f"everything was measured with torch {known.pinned()['torch']}, not with torch{torch.text}")
    return Setup(left, kept, sources, tuple(dict.fromkeys(notes)))
