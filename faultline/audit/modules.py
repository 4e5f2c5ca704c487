"""The Python files of a project as they import each other: what classes are made of, and what a program uses."""

import ast
import functools
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.audit.engines import ANYTHING
from faultline.base.errors import UsageError
from faultline.base.paths import real
from faultline.base.text import one_line
from faultline.projects import files
from faultline.projects.documents import Document
from faultline.trainers import TRL

LONGEST = 500_000  # characters of a file
DEEPEST = 8  # classes that are made of each other
FILES = 60  # that a program imports, and they in turn
TRAINER = re.compile(r"Trainer$")
ARGUMENTS = re.compile(r"TrainingArguments$")
TRLS_ARGUMENTS = frozenset(f"{name.replace('_', '')}config" for name in TRL)  # made of transformers', in small letters
PARSER = re.compile(r"Parser$")  # such as HfArgumentParser, which takes the classes of arguments


@dataclass(frozen=True)
class SourceFile:
    """A file of code, parsed.

    `imports` has, by the name that it has here, what is imported: the levels above, the module, and its name there.
    `classes` are those that it defines, and `arguments` says whether transformers' arguments or a
    trainer are named.
    """

    document: Document
    tree: ast.Module
    imports: Mapping[str, tuple[int, str, str]]
    classes: Mapping[str, ast.ClassDef]
    arguments: bool


def parsed(document: Document) -> SourceFile | None:
    """The code of a file; None for what isn't Python, or is too long or too deep for its parser."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the code's own texts
            tree = ast.parse(document.text) if len(document.text) <= LONGEST else None
            return _module(document, tree) if tree else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _module(document: Document, tree: ast.Module) -> SourceFile:
    imports: dict[str, tuple[int, str, str]] = {}
    classes: dict[str, ast.ClassDef] = {}
    arguments = False
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            imports |= {each.asname or each.name: (node.level, node.module or "", each.name) for each in node.names}
        elif isinstance(node, ast.Import):
            imports |= {each.asname or each.name.partition(".")[0]: (0, each.name, "") for each in node.names}
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = node
        elif isinstance(node, ast.Attribute):
            arguments = arguments or _of_training(node.attr)
    arguments = arguments or any(_of_training(name) for _, _, name in imports.values())
    return SourceFile(document, tree, imports, classes, arguments)


def _of_training(name: str) -> bool:
    return bool(ARGUMENTS.search(name) or TRAINER.search(name))


def name_of(node: ast.expr) -> str:
    """The name of a class or function, without the module that it stands in."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def located(module: SourceFile, name: str) -> tuple[SourceFile, str] | None:
    """The file of the project that a name is imported from, and its name there; None for one of a library's."""
    level, where, original = module.imports.get(name, (0, "", ""))
    for each in (f"{where}.{original}", where) if where or level else ():
        if (path := _file(module.document, level, each)) and (other := _read(*path, path[0].stat().st_mtime_ns)):
            return other, original
    return None


def _file(document: Document, level: int, dotted: str) -> tuple[Path, str] | None:
    """The file of a module as it lies, and as it is shown: in the folder that it is relative to, or else in that of the
    document or one above it, as far as the project's."""
    folder, shown = document.path.parent, Path(document.name).parent
    above = [] if shown.is_absolute() or ".." in shown.parts else [*shown.parents]
    folders = [(folder, shown), *zip(folder.parents, above, strict=False)]
    whole = real(folders[-1][0])  # a link may lead out of it
    inner = Path(*filter(None, dotted.split(".")))
    for base, seen in folders[level - 1 : level] if level else folders:
        for end in (inner.with_suffix(".py") if inner.name else inner, inner / "__init__.py"):
            try:
                if (base / end).is_file() and real(base / end).is_relative_to(whole):
                    return base / end, one_line(seen / end)
            except (OSError, ValueError):  # a name that no system takes
                continue
    return None


@functools.lru_cache(1000)
def _read(path: Path, name: str, changed: int) -> SourceFile | None:
    """A file of code as it is since it was `changed`."""
    try:
        return parsed(files.read(path, name))
    except UsageError:
        return None


@dataclass(frozen=True)
class TrainerClass:
    """The trainer of a `library` that a class is made of, if it is a `subclass`, and the files that say so; no name
    for a class of another kind."""

    name: str = ""
    library: str = ""
    subclass: bool = False
    paths: tuple[Path, ...] = ()


def _bases(module: SourceFile, name: str) -> list[str]:
    """The names of the bases of a class."""
    return [name_of(base) for base in module.classes[name].bases]


Known = dict[tuple[Path, str], TrainerClass]


def made_of(module: SourceFile, name: str, known: Known, depth: int = 0) -> TrainerClass:
    """The trainer that a class is derived from; `known` gets that of each class on the way."""
    key = module.document.path, name
    if key not in known and depth <= DEEPEST:
        known[key] = TrainerClass()  # where it leads back to itself
        known[key] = _made_of(module, name, known, depth)
    return known.get(key, TrainerClass())


def _made_of(module: SourceFile, name: str, known: Known, depth: int) -> TrainerClass:
    if name in module.classes:
        bases = (made_of(module, base, known, depth + 1) for base in _bases(module, name) if base != name)
        return next((replace(base, subclass=True) for base in bases if base.name), TrainerClass())
    if where := located(module, name):
        made = made_of(*where, known, depth + 1)
        return replace(made, paths=(where[0].document.path.resolve(), *made.paths))
    _, library, original = module.imports.get(name, (0, "", ""))
    original, library = original or name, library.partition(".")[0]
    if library == "transformers" and TRAINER.search(original):  # such as its Seq2SeqTrainer
        return TrainerClass("Trainer", library, subclass=original != "Trainer")
    return TrainerClass(original, library) if TRAINER.search(original) else TrainerClass()


def starts(module: SourceFile) -> Iterator[SourceFile]:
    """The files of the project with the functions that a program imports and calls outside of its own functions."""
    outside = [node for node in module.tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)]
    called = {
        call.func.id
        for node in outside
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    }
    for name in sorted(called & module.imports.keys()):
        where = located(module, name)
        if where and any(isinstance(node, ast.FunctionDef) and node.name == where[1] for node in where[0].tree.body):
            yield where[0]


Overrides = dict[tuple[Path, str], frozenset[str] | None]


def overrides_of(module: SourceFile, name: str, known: Overrides, depth: int = 0) -> frozenset[str] | None:
    """The settings that a class of transformers' arguments has of its own, of which ANYTHING stands for those of a base
    that isn't seen; None for another class. `known` gets those of each class on the way."""
    key = module.document.path, name
    if key not in known and depth <= DEEPEST:
        known[key] = None  # where it leads back to itself
        known[key] = _overrides(module, name, known, depth)
    return known.get(key)


def _overrides(module: SourceFile, name: str, known: Overrides, depth: int) -> frozenset[str] | None:
    if name in module.classes:
        bases = [
            overrides_of(module, base, known, depth + 1) if base != name else _of_library(base, "")
            for base in _bases(module, name)
        ]
        if all(base is None for base in bases):
            return None
        return _set_in(module.classes[name]).union(*({ANYTHING} if base is None else base for base in bases))
    if where := located(module, name):
        return overrides_of(*where, known, depth + 1)
    _, library, original = module.imports.get(name, (0, "", ""))
    return _of_library(original or name, library.partition(".")[0])


def _of_library(name: str, library: str) -> frozenset[str] | None:
    of_transformers = library in ("", "transformers") and ARGUMENTS.search(name)
    return frozenset() if of_transformers or (library == "trl" and name.lower() in TRLS_ARGUMENTS) else None


def _set_in(defined: ast.ClassDef) -> frozenset[str]:
    """The names of fields and attributes that a class sets anywhere."""
    assigned = [node for node in ast.walk(defined) if isinstance(node, ast.AnnAssign | ast.Assign)]
    targets = (each for node in assigned for each in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    return frozenset(map(name_of, targets))


def parsed_overrides(path: Path, name: str) -> frozenset[str] | None:
    """The settings that the arguments which a program parses from its command line have of their own, where these are
    transformers' arguments; None if it parses none."""
    program, known = _read(path, name, path.stat().st_mtime_ns), Overrides()
    for module in (program, *starts(program)) if program else ():
        calls = (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))
        given = (part for call in calls if PARSER.search(name_of(call.func)) for part in call.args)
        names = dict.fromkeys(name_of(node) for part in given for node in ast.walk(part) if isinstance(node, ast.expr))
        each = (overrides_of(module, name, known) for name in names if name)
        if (overrides := next((one for one in each if one is not None), None)) is not None:
            return overrides
    return None


def libraries(path: Path, name: str) -> tuple[bool, bool]:
    """Whether a program, or what it imports from the project, uses TRL; and transformers' arguments or trainers."""
    return _libraries(path, name, path.stat().st_mtime_ns)


@functools.lru_cache(300)
def _libraries(path: Path, name: str, changed: int) -> tuple[bool, bool]:
    program = _read(path, name, changed)
    if not program:
        return True, True
    modules, seen = [program], {path.resolve()}
    for module in modules:  # which grows
        for each in module.imports if len(modules) < FILES else ():
            where = located(module, each)
            if where and (other := where[0].document.path.resolve()) not in seen:
                seen.add(other)
                modules.append(where[0])
    used = [each for module in modules for each in module.imports.values()]
    trl = any(not level and where.partition(".")[0] == "trl" for level, where, _ in used)
    return trl, trl or any(module.arguments for module in modules)
