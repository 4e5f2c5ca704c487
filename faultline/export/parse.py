"""Modules of ours as material for one file: their definitions, ready to be moved."""

import ast
import contextlib
import functools
import json
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst

from faultline.base.errors import NotConstant
from faultline.base.paths import PACKAGE, ROOT
from faultline.export.evaluate import evaluate
from faultline.export.fold import fold
from faultline.export.names import Statements, code, flat
from faultline.export.special_cases import BUILD, RECORDS, SEEDED

OURS = ("faultline", "tiny_models", "failure")
MAIN = "main"
FIXTURES = ROOT / "fixtures"


def ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


@dataclass
class Module:
    """A module of ours: its definitions in their order, and where its other names come from."""

    definitions: dict[str, cst.CSTNode] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name to module and attribute, which is empty for the module itself."""


class Reader(Statements):
    """Makes code ready to be moved.

    Imports are hoisted, fixtures become constants, annotations go, and of a docstring the first paragraph stays.
    Seeds go as well: every rank sets one before it builds anything, and compares with nothing but itself.
    """

    def __init__(self, module: Module, rows: int) -> None:
        super().__init__()
        self.module, self.rows = module, rows
        self.classes = 0

    def leave_Import(self, original: cst.Import, updated: cst.Import) -> Any:
        for alias in updated.names:
            name = code(alias.name)
            local = code(alias.asname.name) if alias.asname else name
            self.module.imports[local.partition(".")[0]] = (name, "") if alias.asname else (name, "import")
        return cst.RemoveFromParent()

    def leave_ImportFrom(self, original: cst.ImportFrom, updated: cst.ImportFrom) -> Any:
        assert updated.module and not isinstance(updated.names, cst.ImportStar)
        for alias in updated.names:
            local = code(alias.asname.name) if alias.asname else code(alias.name)
            self.module.imports[local] = (code(updated.module), code(alias.name))
        return cst.RemoveFromParent()

    def leave_Param(self, original: cst.Param, updated: cst.Param) -> cst.Param:
        return updated.with_changes(annotation=None)

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef:
        return shortened(updated.with_changes(returns=None))

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self.classes += 1

    def leave_ClassDef(self, original: cst.ClassDef, updated: cst.ClassDef) -> cst.ClassDef:
        self.classes -= 1
        return shortened(updated)

    def leave_With(self, original: cst.With, updated: cst.With) -> Any:
        seeded = code(updated.items[0].item).startswith(SEEDED)
        return flat(updated.body, updated.leading_lines) if seeded else updated

    def leave_AnnAssign(self, original: cst.AnnAssign, updated: cst.AnnAssign) -> Any:
        if self.classes and isinstance(updated.target, cst.Name):  # perhaps a field
            return updated
        if updated.value is None:
            return cst.RemoveFromParent()
        return cst.Assign([cst.AssignTarget(updated.target)], updated.value)

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if code(updated.func) == BUILD:
            make = updated.args[0].value
            return make.body if isinstance(make, cst.Lambda) else cst.Call(make)
        if code(updated.func) != RECORDS:
            return updated
        name = ast.literal_eval(code(updated.args[0].value))
        lines = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[: self.rows]
        rows = "".join(f"    {json.loads(line)!r},\n" for line in lines)
        self.module.definitions[name.upper()] = cst.parse_statement(f"{name.upper()} = [\n{rows}]\n")
        return cst.Name(name.upper())


def read(text: str, rows: int = 0) -> Module:
    """A module's definitions and imports; anything else at its top, such as a docstring, is left away.

    Of a fixture, the first `rows` lines are taken.
    """
    module = Module()
    for statement in _parsed(text).body:
        ready: Any = statement.visit(Reader(module, rows))
        line = ready.body[0] if isinstance(ready, cst.SimpleStatementLine) else None
        if isinstance(ready, cst.FunctionDef | cst.ClassDef):
            module.definitions[ready.name.value] = ready
        elif isinstance(ready, cst.SimpleStatementLine) and isinstance(line, cst.Assign | cst.AugAssign):
            module.definitions[code(line.targets[0].target if isinstance(line, cst.Assign) else line)] = ready
    return module


@functools.cache
def _parsed(text: str) -> cst.Module:
    return cst.parse_module(text)


@functools.cache
def _read_once(text: str, rows: int) -> Module:
    return read(text, rows)


def source(name: str) -> Path:
    """The file of a module of ours, of the package or beside it."""
    place = (PACKAGE.parent if name.startswith(f"{PACKAGE.name}.") else ROOT) / name.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


class Sources:
    """The modules of ours that one file is made of; `failure` is the folder's failure.py."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._constants: dict[str, dict[str, object]] = {}
        self._folded: set[tuple[str, str]] = set()
        self._read: dict[str, Module] = {}

    def __getitem__(self, name: str) -> Module:
        if name not in self._read:
            text = (self._folder / "failure.py" if name == "failure" else source(name)).read_text(encoding="utf-8")
            once = _read_once(text, self._rows)  # nodes don't change, what holds them does
            self._read[name] = Module(dict(once.definitions), dict(once.imports))
        return self._read[name]

    def add_main(self, text: str) -> None:
        """The main part, which may use all names of the failure's module."""
        main, failure = read(text), self["failure"]
        main.imports = {name: ("failure", name) for name in failure.definitions} | failure.imports | main.imports
        self._read[MAIN] = main

    def definition(self, module: str, name: str) -> cst.CSTNode:
        """A definition, in which what its module decides is decided."""
        node = self[module].definitions[name]
        if isinstance(node, cst.FunctionDef) and module != MAIN and (module, name) not in self._folded:
            self._folded.add((module, name))
            node = self[module].definitions[name] = self.fold(module, node, {})
        return node

    def fold(self, module: str, function: cst.FunctionDef, known: Mapping[str, object]) -> cst.FunctionDef:
        """A function of a module, folded with what is known besides the module's constants."""
        constants = self.constants(module)
        numbers = {n for n in self[module].imports if type(constants.get(n)) in (int, float)}  # of other modules
        return fold(function, {**constants, **known}, tables(self[module].definitions), numbers)

    def constants(self, name: str) -> dict[str, object]:
        """The values of a module's constants, as far as they follow from each other and from those it imports."""
        if name in self._constants:
            return self._constants[name]
        known = self._constants.setdefault(name, {"string": string})
        for local, (place, attribute) in self[name].imports.items():
            if ours(place) and attribute in self.constants(place):
                known[local] = self.constants(place)[attribute]
        for local, value in assigned(self[name].definitions).items():
            with contextlib.suppress(NotConstant):
                known[local] = evaluate(value, known)
        return known


def assigned(definitions: Mapping[str, cst.CSTNode]) -> dict[str, cst.BaseExpression]:
    lines = {name: node.body[0] for name, node in definitions.items() if isinstance(node, cst.SimpleStatementLine)}
    return {name: line.value for name, line in lines.items() if isinstance(line, cst.Assign)}


def tables(definitions: Mapping[str, cst.CSTNode]) -> dict[str, cst.Dict]:
    """The dictionaries among definitions, whatever their values are."""
    return {name: value for name, value in assigned(definitions).items() if isinstance(value, cst.Dict)}


def shortened(node: Any) -> Any:
    """A function or class with the first paragraph of its docstring."""
    first = node.body.body[0] if isinstance(node.body, cst.IndentedBlock) else None
    if not isinstance(first, cst.SimpleStatementLine) or node.get_docstring() is None:
        return node
    paragraph = node.get_docstring().split("\n\n")[0].rstrip()
    quoted = '"""' + paragraph.replace("\\", "\\\\").replace("\n", "\n    ") + '"""'
    line = first.with_changes(body=[cst.Expr(cst.SimpleString(quoted))])
    return node.with_changes(body=node.body.with_changes(body=[line, *node.body.body[1:]]))
