"""What differs between two releases of a package, by syntax trees: functions, and the bodies of modules."""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.utils import canonicalize_name

from faultline.base.errors import UNREADABLE

BODY = ""  # the name of a module's body, as `faultline.ranks.executed` has it
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Unit(NamedTuple):
    """A function of a package by its qualified name, or a module's body, in a file below the installed packages."""

    package: str
    file: str
    name: str

    @property
    def body(self) -> bool:
        return self.name == BODY


def changed(before: Path, after: Path, packages: Iterable[str]) -> frozenset[Unit]:
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
                was, now = units(old), units(new)
                names = {name for name in {*was, *now} if was.get(name) != now.get(name)}
                differing |= {Unit(package, file, name) for name in names}
    return frozenset(differing)


def units(source: bytes) -> Mapping[str, str]:
    """A digest of each function of a file and of its body, by qualified names, without comments and docstrings.

    Of a file that isn't there, nothing; of one that this Python can't read, its body is all of it.
    """
    if not source:
        return {}
    try:
        tree = ast.parse(source)
        split = Split()
        split.visit(tree)
        split.add(BODY, tree)
    except (SyntaxError, *UNREADABLE):
        return {BODY: hashlib.blake2b(source).hexdigest()}
    return split.digests


class Split(ast.NodeTransformer):
    """Takes functions out of what is around them, the innermost first; one may be defined several times."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.around = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.function(node)

    def function(self, node: Function) -> None:
        name = self.around + node.name
        self.within(f"{name}.<locals>.", node)
        self.add(name, node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.within(f"{self.around}{node.name}.", node)
        without_docstring(node)
        return node

    def within(self, around: str, node: ast.AST) -> None:
        before, self.around = self.around, around
        self.generic_visit(node)
        self.around = before

    def add(self, name: str, node: Function | ast.Module) -> None:
        without_docstring(node)
        text = self.digests.get(name, "") + ast.dump(node, annotate_fields=False)
        self.digests[name] = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()


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
