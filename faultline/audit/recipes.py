"""The set-ups of a folder: a command or config that trains, with what it names, each by itself."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.audit.defaults import TRANSFORMERS
from faultline.audit.reading import Content

ENGINES = ("accelerate", "deepspeed")


@dataclass(frozen=True)
class Recipe:
    """A set-up of a project: its name, and what the files say that belong to it."""

    name: str
    contents: tuple[Content, ...]


def recipes(contents: Mapping[str, Sequence[Content]]) -> list[Recipe]:
    """Each set-up that the files of a folder make, with what all of them share; none where there is no more than one.

    A command is one, with the configs and the code that it names. So is a config of arguments that no command names,
    with the code of a trainer that is called as its folder or file is, or the only one; a framework's needs none. And
    so is code that nothing else needs. Configs of an engine that nothing names are alternatives of those without one.
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
            elif content.kind == "arguments" and content.path not in named:
                used = [] if _of_framework(content) else _called(name, trainers)
                used = [each for each in used if each in free]
                taken.update(used)
                anchors.append((name, [content, *_all(contents, used)]))
    anchors += [(name, [*contents[name]]) for name in free if name not in taken]
    if len(anchors) < 2:
        return []
    shared = [content for content in each if not content.kind or content.pins]
    engines = [content for content in each if content.kind in ENGINES and content.path not in named]
    times = Counter[str]()
    each_named = []
    for name, parts in anchors:
        times[name] += 1
        unique = f"{name} ({times[name]})" if times[name] > 1 else name
        each_named.append(Recipe(unique, (*parts, *shared, *([] if _placed(parts) else engines))))
    return each_named


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


def _trains(code: Sequence[Content]) -> bool:
    return any(each.axis == "trainer" for content in code for each in content.statements)


def _placed(parts: Sequence[Content]) -> bool:
    """Whether one of the parts says the strategy."""
    return any(statement.axis == "strategy" for part in parts for statement in part.statements)
