"""A training project: the statements of its files put together, each with its place."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from packaging.version import Version

from faultline.audit import arguments, defaults, engines, pins, recipes
from faultline.audit.contents import MOST, Content, read_files
from faultline.audit.engines import (
    IN_CODE,
    NO,
    NORM,
    NOT_CLIPPED,
    OTHER_TRAINER,
    UNNAMED,
    YES,
    Statement,
    strategies_like,
)
from faultline.audit.open_conditions import label
from faultline.audit.pins import Notes, Sources
from faultline.audit.recipes import Recipe
from faultline.base.packages import STACK
from faultline.base.text import count, one_line
from faultline.catalogue.loading import needs
from faultline.observations import measured, ranges
from faultline.observations.answers import CellAnswer
from faultline.observations.ranges import Range
from faultline.projects.documents import Place
from faultline.strategies.naming import asked_for
from faultline.trainers import TRL

OTHER_NORM = "own max_grad_norm"
# PreTrainedModel's default, where use_reentrant isn't given: True up to 4.57.6, False from 5.0.0 on.
NON_REENTRANT = Version("5.0.0")
# These TRL trainers set use_reentrant=False for an older transformers: not in 0.26.2 yet, in 0.27.1.
TRL_BEFORE, TRL_SINCE = Version("0.27.0.dev0"), Version("0.27.1")
NOT_TRL = frozenset([OTHER_TRAINER, "trainer"])
FORCING = frozenset(name for name, each in TRL.items() if each.forces_mode)
# DeepSpeed's gradient_clipping where its config has none: 0.0 up to 0.19.2, 1.0 from 0.19.3 on.
CLIPS = Version("0.19.3")
Values = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Project:
    """A project: the values left of each axis or need, and each package's range of versions.

    What isn't there isn't known. `sources` are the places that state each of them, `read` the files that were read, and
    `ignored` the failures, by name or id, that its files ask to ignore. `noted` has most of the `notes` with their
    places, and `shows` keeps what its releases say of a failure and a cell.
    """

    left: Mapping[str, frozenset[str]] = field(default_factory=dict)
    versions: Mapping[str, Range] = field(default_factory=dict)
    sources: Mapping[str, tuple[Place, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    ignored: frozenset[str] = frozenset()
    noted: Notes = field(default_factory=Notes, compare=False, repr=False)
    shows: dict[tuple[str, object], CellAnswer] = field(default_factory=dict, compare=False, repr=False)

    @property
    def unknown(self) -> list[str]:
        """The axes, needs and packages that failures depend on and no file states, in a stable order."""
        axes = ("strategy", "checkpointing", "precision", "trainer", *needs())
        packages = [name for name in STACK if name not in self.versions and name not in self.unused]
        return [axis for axis in axes if axis not in self.left] + packages

    @property
    def unused(self) -> frozenset[str]:
        """The packages that have no part in the training: TRL where the trainer is transformers' own, or made of it."""
        trainers = self.left.get("trainer", frozenset())
        alone = "trainer" in trainers and trainers <= NOT_TRL and "trl" not in self.versions
        return frozenset(["trl"] if alone else ())


def read_recipes(
    paths: Sequence[str], environment: bool = False, python: str = ""
) -> tuple[Project, dict[str, Project]]:
    """The project in files and folders, in the active environment if that is asked for, in that of `python`, or in the
    current folder if nothing is named; and each set-up of a folder by its name, none where there is no more than one.

    Where there are several, the project is what all of them share. Files that are named belong together.
    Raises UsageError for a file that isn't recognised or can't be read, unless it was only found in a folder, and if
    there is nothing to read.
    """
    contents, notes = read_files(paths, environment, python)
    named = [content for path in paths if not Path(path).is_dir() for content in contents.get(one_line(path), ())]
    folders = any(Path(path).is_dir() for path in paths) if paths else not (environment or python)
    shared_alone = all(not content.kind or content.kind in recipes.ENGINES for content in named)
    each = recipes.recipes(contents, named) if folders and shared_alone else []
    if not each:
        return project_of(contents, notes), {}
    whole, of_recipes = project_of({"": _shared(each)}, notes), {one.name: put_together(one.contents) for one in each}
    times = Counter(key for project in of_recipes.values() for key in project.noted.places)
    more = Notes()
    for key, _ in times.most_common():
        if key not in whole.noted.places:
            places = [place for project in of_recipes.values() for place in project.noted.places.get(key, ())]
            more.add(*key, places)
    counted = more.texts({key: f"(of {count(times[key], 'recipe')})" for key in more.places})
    counted += [f"{len(counted) - MOST} more notes on recipes"] if len(counted) > MOST else []
    shown = [*counted[:MOST], *counted[-1:]] if len(counted) > MOST else counted
    return replace(whole, notes=(*whole.notes, *shown), read=tuple(contents)), of_recipes


def _shared(each: Sequence[Recipe]) -> list[Content]:
    """The versions that all recipes ask for, and what all of them ask to ignore."""
    asked = [{id(pin): pin for content in recipe.contents for pin in content.pins} for recipe in each]
    ignored = [{name for content in recipe.contents for name in content.ignored} for recipe in each]
    common = [pin for key, pin in asked[0].items() if all(key in others for others in asked)]
    return [Content(pins=common, ignored=tuple(sorted(set.intersection(*ignored))))]


def project_of(contents: Mapping[str, Sequence[Content]], notes: Sequence[str]) -> Project:
    """The project that files with these contents, by name, make together; with notes on others."""
    project = put_together([content for of_file in contents.values() for content in of_file])
    return replace(project, notes=(*notes, *project.notes), read=tuple(contents))


def put_together(contents: Sequence[Content]) -> Project:
    """The project that files describe together.

    Files of one kind are alternatives, of which any may be what runs; what the kinds leave must hold together.
    """
    notes, of_versions = Notes(), Notes()
    packages, places = pins.versions([pin for content in contents for pin in content.pins], of_versions)
    statements = [each for content in contents for each in content.statements]
    by_default = [each for each in statements if each.default]
    in_code = frozenset[str]().union(*(each.values for each in statements if each.axis == IN_CODE))
    called = any(each.axis == "trainer" and not each.shared for each in statements)
    given = [each for content in contents if content.kind != "code" for each in content.statements]
    weaker = {"trainer"} if called else set[str]()
    weaker |= {"adapter"} if any(each.axis == "adapter" for each in given) else set()
    left, sources = _settings([_of_release(content, packages, weaker) for content in contents], notes)
    stated = {*left}
    _by_default(by_default, left, sources, packages)
    for axis in in_code & left.keys():
        del left[axis]
    packages = {name: asked for name, asked in packages.items() if name in STACK}
    places = {name: each for name, each in places.items() if name in STACK}
    unnamed = left.pop(UNNAMED, None)
    sources = {axis: tuple(dict.fromkeys(each)) for axis, each in sources.items() if axis in left} | places
    mode, package = _mode(left, packages)
    if unnamed and mode in left.get("checkpointing", ()):
        left["checkpointing"] = frozenset([mode])
        sources["checkpointing"] += tuple(source.with_text(f"{mode} by default") for source in sources[package])
    if NORM in left:
        left[OTHER_NORM] = _clips_otherwise(left.pop(NORM), packages.get("deepspeed", Range()))
        sources[OTHER_NORM] = sources.pop(NORM)
    for need, norm in ((OTHER_NORM, NORM), (NOT_CLIPPED, "")):  # a release would decide what nobody states
        if norm not in stated and left.get(need) == YES | NO:
            del left[need], sources[need]
    noted = Notes(notes.places | of_versions.places)
    texts = dict.fromkeys((*noted.texts(), *_torch(packages.get("torch", Range()).text)))
    ignored = frozenset(name for content in contents for name in content.ignored)
    return Project(left, packages, sources, tuple(texts), ignored=ignored, noted=noted)


def _settings(contents: Iterable[Content], notes: Notes) -> tuple[Values, Sources]:
    """The values that files leave of each axis, and the places that state them."""
    kinds: dict[str, list[Values]] = {}
    explicit: set[str] = set()  # two files that both leave out a key don't contradict each other
    sources: Sources = {}
    for content in contents:
        if content.kind:
            kinds.setdefault(content.kind, []).append(_by_axis(content.statements))
        for statement in content.statements:
            sources[statement.axis] = (*sources.get(statement.axis, ()), statement.source)
            explicit |= set() if statement.left_out else {statement.axis}
            if statement.note:
                notes.add("", f": {statement.note}", [statement.source])
    left: Values = {}
    for axis, places in sources.items():
        stated = {kind: each for kind, each in kinds.items() if all(axis in values for values in each)}
        by_kind = [frozenset[str]().union(*(values[axis] for values in each)) for each in stated.values()]
        if by_kind:
            left[axis] = frozenset.intersection(*by_kind)
            if left[axis]:  # each command runs, also one that the other files don't fit
                commands = [values[axis] for values in stated.get("command", ())]
                left[axis] = left[axis].union(*(each for each in commands if each.isdisjoint(left[axis])))
            if not left[axis] and all(by_kind):
                left[axis] = frozenset[str]().union(*by_kind)
                before = f"{label(axis)}: these contradict each other, so each is taken as possible: "
                if axis in explicit:
                    notes.add(before, "", places)
        elif axis != UNNAMED:
            why = "taken as unknown, because only some of the files of one kind state it"
            notes.add(f"{label(axis)}: {why}: ", "", places)
    return left, sources


def _by_default(by_default: Sequence[Statement], left: Values, sources: Sources, packages: Mapping[str, Range]) -> None:
    """Add what frameworks set by default: of an axis that nobody states, or where it leaves less than is stated."""
    for axis in dict.fromkeys(each.axis for each in by_default):
        if axis in sources and axis not in left:  # some of the files state it
            continue
        if axis == NORM and "trainer" not in left:  # which may be a loop of one's own
            continue
        values, used = defaults.values_left(by_default, axis, left.get("strategy"), packages)
        values = left.get(axis, values) & values
        if values and values != left.get(axis):
            left[axis] = values
            sources[axis] = (*sources.get(axis, ()), *(each.source for each in used))


def _of_release(content: Content, packages: Mapping[str, Range], weaker: Collection[str]) -> Content:
    """The content of a file as the allowed releases have it, without what is `weaker`: a trainer by its settings where
    one is called by its name, and an adapter that code can make where arguments say whether there is one."""
    stated = [each for each in content.statements if not each.default and each.axis != IN_CODE]
    stated = [
        each
        for each in stated
        if each.axis not in weaker or not (each.shared if each.axis == "trainer" else content.kind == "code")
    ]
    return replace(content, statements=[arguments.of_release(statement, packages) for statement in stated])


def _by_axis(statements: Iterable[Statement]) -> Values:
    """The values that one file leaves of each axis: those that all of its places leave, or any if these contradict."""
    axes: dict[str, list[frozenset[str]]] = {}
    for statement in statements:
        axes.setdefault(statement.axis, []).append(statement.values)
    # A way to train that was not measured leaves nothing, whatever else is stated.
    return {
        axis: frozenset.intersection(*each) or (frozenset[str]().union(*each) if all(each) else frozenset())
        for axis, each in axes.items()
    }


def _mode(left: Values, packages: Mapping[str, Range]) -> tuple[str, str]:
    """The mode that nobody named, and the package that decides it; both empty where the versions leave either."""
    transformers, trl = packages.get("transformers", Range()), packages.get("trl", Range())
    trainer = left.get("trainer", frozenset())
    if transformers.reaches(NON_REENTRANT):
        default = "non-reentrant", "transformers"
    elif not transformers.below(NON_REENTRANT):
        return "", ""
    elif (trainer and trainer <= NOT_TRL) or trl.below(TRL_BEFORE):
        return "reentrant", "transformers"
    elif trainer and trainer <= FORCING and trl.reaches(TRL_SINCE):
        default = "non-reentrant", "trl"
    else:
        return "", ""
    # There newer TRL trainers force it to be reentrant.
    zero3 = strategies_like(*asked_for(["zero_stage: 3"]))
    possible = not zero3.isdisjoint(left.get("strategy", zero3))
    forced = possible and not (trainer and trainer <= NOT_TRL) and left.get("adapter") != frozenset(["no"])
    return ("", "") if forced else default


def _clips_otherwise(norms: frozenset[str], deepspeed: Range) -> frozenset[str]:
    """Whether DeepSpeed clips otherwise than at the norm that is meant, where its config doesn't say at which."""
    if engines.UNKNOWN in norms:
        return frozenset(["yes", "no"])
    clips = {"1.0"} if deepspeed.reaches(CLIPS) else {"0.0"} if deepspeed.below(CLIPS) else {"0.0", "1.0"}
    return frozenset({"yes" for norm in norms if {norm} != clips} | {"no" for norm in norms if norm in clips})


@functools.lru_cache
def _torch(text: str) -> list[str]:
    """A note on a torch that few or no runs had."""
    asked = ranges.parse(text)
    usual = measured.pinned()["torch"]
    if asked.holds(ranges.public(usual)):
        return []
    stacks = [
        name for name, stack in measured.named_stacks().items() if asked.holds(ranges.public(stack.versions["torch"]))
    ]
    rest = f"only {', '.join(stacks)} had torch{asked.text}" if stacks else f"none had torch{asked.text}"
    return [f"nearly all runs had torch {usual}, {rest}"]
