"""What differs between two releases of a package, by syntax trees: functions, and the bodies of modules."""

import ast
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from importlib.util import decode_source
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from faultline.base.errors import UNREADABLE

BODY = ""  # the name of a module's body, as `faultline.ranks.executed` has it
Function = ast.FunctionDef | ast.AsyncFunctionDef
Part = tuple[str, Function | ast.Module | None]
"""The text and the syntax tree of a function, or of a module's body; no tree of what this Python can't read."""


class Unit(NamedTuple):
    """A function of a package by its qualified name, or a module's body, in a file below the installed packages."""

    package: str
    file: str
    name: str

    @property
    def body(self) -> bool:
        return self.name == BODY


def changed_units(before: Path, after: Path, packages: Iterable[str]) -> frozenset[Unit]:
    """The functions and module bodies of packages that aren't the same in two folders, or are in one of them only."""
    sides = [
        {canonicalize_name(each.name): each for each in metadata.distributions(path=[str(at)])}
        for at in (before, after)
    ]
    differing = set()
    for package in packages:
        files = [_files(side.get(canonicalize_name(package))) for side in sides]
        for file in files[0] | files[1]:
            old, new = (_content(at / file) for at in (before, after))
            if old != new:
                differing |= {Unit(package, file, name) for name in names_that_differ(old, new)}
    return frozenset(differing)


def names_that_differ(old: bytes, new: bytes) -> set[str]:
    """The functions, by qualified names, and the body of a file that aren't the same in two versions of it, whatever
    their comments and docstrings."""
    was, now = parts(old), parts(new)
    return {name for name in {*was, *now} if not _equal(was.get(name, []), now.get(name, []))}


def _equal(before: Sequence[Part], after: Sequence[Part]) -> bool:
    """Whether parts have the same text or, which takes longer to say, the same syntax tree."""
    if [text for text, _ in before] == [text for text, _ in after]:
        return True
    trees = [(old, new) for (_, old), (_, new) in zip(before, after, strict=False) if old and new]
    alike = (ast.dump(old, annotate_fields=False) == ast.dump(new, annotate_fields=False) for old, new in trees)
    return len(before) == len(after) == len(trees) and all(alike)


def parts(source: bytes) -> Mapping[str, Sequence[Part]]:
    """The functions of a file by qualified names, each taken out of what is around it, and what is left as its body.

    Of a file that isn't there, nothing; of one that this Python can't read, its body is all of it. One name may be
    defined several times.
    """
    if not source:
        return {}
    try:
        tree = ast.parse(source)
        split = Split(decode_source(source).split("\n"))
        split.within("", tree)
    except (SyntaxError, *UNREADABLE):
        return {BODY: [(source.decode("latin-1"), None)]}
    split.add(BODY, "".join(split.lines), tree)
    return split.parts


class Split:
    """Takes functions out of what is around them, the innermost first."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.parts: dict[str, list[Part]] = {}

    def within(self, around: str, node: ast.AST) -> None:
        """Take the functions out of a node's statements."""
        for _, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [each for each in value if not self.takes(around, each)]

    def takes(self, around: str, node: ast.AST) -> bool:
        """Whether a node is a function, which is taken out with those within it."""
        if isinstance(node, Function):
            name = around + node.name
            first = min(each.lineno for each in (node, *node.decorator_list))
            self.within(f"{name}.<locals>.", node)
            self.add(name, "\n".join(self.lines[first - 1 : node.end_lineno]), node)
            return True
        if isinstance(node, ast.ClassDef):
            self.within(f"{around}{node.name}.", node)
            without_docstring(node)
        elif isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            self.within(around, node)
        return False

    def add(self, name: str, text: str, node: Function | ast.Module) -> None:
        without_docstring(node)
        self.parts.setdefault(name, []).append((text, node))


def without_docstring(node: Function | ast.ClassDef | ast.Module) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        del node.body[0]


def packages_of(python: str) -> Path | None:
    """The folder of the packages of this process's interpreter, or of a virtual environment's; None for any other."""
    if python == sys.executable:
        return Path(sysconfig.get_path("purelib"))
    return next(Path(python).parent.parent.glob("lib/python3*/site-packages"), None)


def _files(distribution: metadata.Distribution | None) -> set[str]:
    files = distribution.files if distribution else None
    return {str(file) for file in files or () if file.suffix == ".py" and ".." not in file.parts}


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
