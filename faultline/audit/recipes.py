"""The set-ups of a folder: a command or config that trains, with what it names, each by itself."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.audit.contents import Content
from faultline.audit.defaults import TRANSFORMERS
from faultline.audit.engines import OTHER_TRAINER

ENGINES = ("accelerate", "deepspeed")
NEAR = 3  # levels from a config up, as of configs/accelerate/zero2.yaml


@dataclass(frozen=True)
class Recipe:
    """A set-up of a project: its name, and what the files say that belong to it."""

    name: str
    contents: tuple[Content, ...]


def recipes(contents: Mapping[str, Sequence[Content]], always: Collection[Content] = ()) -> list[Recipe]:
    """Each set-up that the files of a folder make, with what all of them share; none where there is no more than one.

    A command is one, with the configs and the code that it names. So is a config of arguments that no command names,
    with the code of a trainer that is called as its folder or file is, or the only one; a framework's needs none. And
    so is a program that nothing else needs. What nothing launches may be launched with any of accelerate's configs in
    the same part of the project. Versions hold in the folder of their file, and below; some contents hold `always`.
    """
    each = [content for of_file in contents.values() for content in of_file]
    named = {path for content in each for path in content.names}
    code = [name for name, of_file in contents.items() if any(content.kind == "code" for content in of_file)]
    free = [name for name in code if contents[name][0].path not in named]
    trainers = [name for name in code if _trains(contents[name])]
    anchors: list[tuple[str, list[Content]]] = []
    taken: set[str] = set()
    for name, of_file in contents.items():
        for content in of_file:
            if content.kind == "command":
                used = [each for each in code if contents[each][0].path in content.names]
                anchors.append((content.title or name, [content, *_all(contents, used)]))
            elif content.kind == "arguments" and content.path not in named and content.statements:
                used = [] if _of_framework(content) else _called(name, trainers)
                used = [each for each in used if each in free]
                taken.update(used)
                anchors.append((name, [content if used else _of_any(content, each), *_all(contents, used)]))
    anchors += [(name, [*contents[name]]) for name in free if name not in taken and _is_program(contents[name])]
    if len(anchors) < 2:
        return []
    versions = [content for content in each if content.pins or not content.kind]
    homes = {_home(content) for content in versions if content.pins}
    times = Counter[str]()
    each_named = []
    for name, parts in anchors:
        times[name] += 1
        unique = f"{name} ({times[name]})" if times[name] > 1 else name
        launches = [one for one in each if one.kind == "accelerate"] if _any_launch(parts) else []
        near = [one for one in launches if _launches(one.path, parts[0].path, homes)]
        each_named.append(Recipe(unique, (*parts, *_versions(parts, versions, homes, always), *near)))
    return each_named


def _of_any(content: Content, each: Sequence[Content]) -> Content:
    """A config whose program nothing names: for trainers of the project's own too, where it has any."""
    makes = [statement for one in each if one.kind == "code" for statement in one.statements]
    if not any(statement.axis == "trainer" and OTHER_TRAINER in statement.values for statement in makes):
        return content
    wider = [
        replace(one, values=one.values | {OTHER_TRAINER}) if one.axis == "trainer" and one.shared else one
        for one in content.statements
    ]
    return replace(content, statements=wider)


def _versions(
    parts: Sequence[Content], versions: Sequence[Content], homes: Collection[Path], always: Collection[Content]
) -> list[Content]:
    """The contents with the versions that hold for some parts; of a package, those in the innermost folder."""
    above = {folder for part in parts for path in (part.path, *part.names) for folder in path.parents}
    given = [one for one in versions if one in always or one.path == Path()]
    alone = len(homes) == 1
    inside = [one for one in versions if one not in given and ((alone and one.pins) or _home(one) in above)]
    deepest: dict[str, int] = {}
    for one in inside:
        deepest |= {pin.package: max(deepest.get(pin.package, 0), _depth(one)) for pin in one.pins}
    held = [[pin for pin in one.pins if deepest[pin.package] == _depth(one)] for one in inside]
    return given + [
        Content(pins=pins, path=one.path, ignored=one.ignored) for one, pins in zip(inside, held, strict=True)
    ]


def _any_launch(parts: Sequence[Content]) -> bool:
    """Whether any of accelerate's configs may be what some parts are launched with."""
    placed = any(statement.axis == "strategy" for part in parts for statement in part.statements)
    return parts[0].any_launch and not placed and not _of_framework(parts[0])


def _depth(content: Content) -> int:
    return len(_home(content).parts)


def _home(content: Content) -> Path:
    """The folder for which a file says the versions."""
    folder = content.path.parent
    return folder.parent if folder.name in ("requirements", "reqs") else folder


def _launches(config: Path, file: Path, homes: Collection[Path]) -> bool:
    """Whether a config is of the same part of a project as a file, and in or next to a folder above it."""
    return _part(config, homes) == _part(file, homes) and not {*config.parents[:NEAR]}.isdisjoint(file.parents)


def _part(path: Path, homes: Collection[Path]) -> Path:
    """The folder of the part of a project that a file belongs to: one with versions of its own."""
    return next((folder for folder in path.parents if folder in homes), Path())


def _all(contents: Mapping[str, Sequence[Content]], names: Sequence[str]) -> Iterator[Content]:
    for name in names:
        yield from contents[name]


def _called(config: str, code: Sequence[str]) -> list[str]:
    """The code that a config may be for: the only one, or the only one with a name that is in the config's path."""
    words = {*Path(config).with_suffix("").parts}
    alike = [name for name in code if Path(name).stem in words]
    return alike if len(alike) == 1 else [*code] if len(code) == 1 else []


def _of_framework(content: Content) -> bool:
    """Whether a framework reads a config, and not only transformers' or TRL's arguments."""
    return any(each.default and each.default.framework != TRANSFORMERS for each in content.statements)


def _is_program(code: Sequence[Content]) -> bool:
    """Whether code makes a trainer, or places a training itself."""
    stated = {each.axis for content in code for each in content.statements if not each.default}
    return bool(stated & {"trainer", "strategy"})


def _trains(code: Sequence[Content]) -> bool:
    return any(each.axis == "trainer" for content in code for each in content.statements)
