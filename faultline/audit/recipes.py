"""The set-ups of a folder: a command or config that trains, with what it names, each by itself."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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


@dataclass(frozen=True)
class _Folder:
    """The files of a folder by name, all their contents, the names of those with code, and what any content names."""

    files: Mapping[str, Sequence[Content]]
    contents: Sequence[Content]
    code: Sequence[str]
    named: Collection[Path]

    @cached_property
    def homes(self) -> set[Path]:
        """The folders that say versions."""
        return {_home(content) for content in self.contents if content.pins}

    @cached_property
    def trainers(self) -> list[str]:
        """The files with code that makes a trainer."""
        return [name for name in self.code if _trains(self.files[name])]

    def free(self, name: str) -> bool:
        """Whether nothing names a file."""
        return self.files[name][0].path not in self.named


@dataclass(frozen=True)
class _Anchor:
    """What makes a set-up: a command, a config or a program, its name, and those of the files with its code."""

    name: str
    contents: tuple[Content, ...]
    code: Sequence[str] = ()


def recipes(files: Mapping[str, Sequence[Content]], always: Collection[Content] = ()) -> list[Recipe]:
    """Each set-up that the files of a folder make, with what all of them share; none where there is no more than one.

    A command is one, with the configs and the code that it names. So is a config of arguments that no command names,
    with the code of a trainer that is called as its folder or file is, or the only one; a framework's needs none. And
    so is a program that nothing else needs. What nothing launches may be launched with any of accelerate's configs in
    the same part of the project. Versions hold in the folder of their file, and below; some contents hold `always`.
    """
    contents = [content for of_file in files.values() for content in of_file]
    code = [name for name, of_file in files.items() if any(content.kind == "code" for content in of_file)]
    folder = _Folder(files, contents, code, {path for content in contents for path in content.names})
    anchors = [*_of_commands_and_configs(folder)]
    anchors += _of_programs(folder, {name for anchor in anchors for name in anchor.code})
    if len(anchors) < 2:
        return []
    times = Counter[str]()
    made = []
    for anchor in anchors:
        times[anchor.name] += 1
        name = f"{anchor.name} ({times[anchor.name]})" if times[anchor.name] > 1 else anchor.name
        shared = [*_versions(anchor, folder, always), *_launch_configs(anchor, folder)]
        made.append(Recipe(name, (*anchor.contents, *shared)))
    return made


def _of_commands_and_configs(folder: _Folder) -> Iterator[_Anchor]:
    """Those of commands and of configs, in the order of the files."""
    for name, of_file in folder.files.items():
        for content in of_file:
            if content.kind == "command":
                yield _of_command(name, content, folder)
            elif content.kind == "arguments" and content.path not in folder.named and content.statements:
                yield _of_config(name, content, folder)


def _of_command(name: str, content: Content, folder: _Folder) -> _Anchor:
    code = [each for each in folder.code if folder.files[each][0].path in content.names]
    return _Anchor(content.title or name, (content, *_all(folder.files, code)), code)


def _of_config(name: str, content: Content, folder: _Folder) -> _Anchor:
    called = [] if _of_framework(content) else [each for each in _called(name, folder.trainers) if folder.free(each)]
    config = content if called else _for_any_trainer(content, folder)
    return _Anchor(name, (config, *_all(folder.files, called)), called)


def _of_programs(folder: _Folder, taken: Collection[str]) -> list[_Anchor]:
    free = [name for name in folder.code if folder.free(name) and name not in taken]
    return [_Anchor(name, tuple(folder.files[name])) for name in free if _is_program(folder.files[name])]


def _for_any_trainer(content: Content, folder: _Folder) -> Content:
    """A config whose program nothing names: for trainers of the project's own too, where it has any."""
    makes = [statement for one in folder.contents if one.kind == "code" for statement in one.statements]
    if not any(statement.axis == "trainer" and OTHER_TRAINER in statement.values for statement in makes):
        return content
    wider = [
        replace(one, values=one.values | {OTHER_TRAINER}) if one.axis == "trainer" and one.shared else one
        for one in content.statements
    ]
    return replace(content, statements=wider)


def _versions(anchor: _Anchor, folder: _Folder, always: Collection[Content]) -> list[Content]:
    """The contents with the versions that hold for a set-up; of a package, those in the innermost folder."""
    above = {parent for one in anchor.contents for path in (one.path, *one.names) for parent in path.parents}
    versions = [one for one in folder.contents if one.pins or not one.kind]
    given = [one for one in versions if one in always or one.path == Path()]
    alone = len(folder.homes) == 1
    inside = [one for one in versions if one not in given and ((alone and one.pins) or _home(one) in above)]
    deepest: dict[str, int] = {}
    for one in inside:
        deepest |= {pin.package: max(deepest.get(pin.package, 0), _depth(one)) for pin in one.pins}
    held = [[pin for pin in one.pins if deepest[pin.package] == _depth(one)] for one in inside]
    return given + [
        Content(pins=pins, path=one.path, ignored=one.ignored) for one, pins in zip(inside, held, strict=True)
    ]


def _launch_configs(anchor: _Anchor, folder: _Folder) -> list[Content]:
    """The configs of accelerate's any of which a set-up may be launched with, which says no engine itself."""
    first = anchor.contents[0]
    placed = any(statement.axis == "strategy" for one in anchor.contents for statement in one.statements)
    if not first.any_launch or placed or _of_framework(first):
        return []
    configs = [one for one in folder.contents if one.kind == "accelerate"]
    return [one for one in configs if _launches(one.path, first.path, folder.homes)]


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
