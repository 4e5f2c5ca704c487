"""Modules of ours as material for one file: their definitions, ready to be moved."""

import ast
import contextlib
import functools
import importlib.util
import json
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faultline.base.errors import NotConstant
from faultline.base.paths import PACKAGE, ROOT
from faultline.export.decide import decide, flat
from faultline.export.names import bindings, evaluate, parsed
from faultline.strategies import ROWS

OURS = ("faultline", "tiny_models", "failure")
MAIN = "main"
FIXTURES = ROOT / "fixtures"
OF_RANKS = re.compile(r"\bseed=[^,)\n]*setup\.rank|\bseed = [^\n]*setup\.rank")  # each rank draws another model


def ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


@dataclass
class SourceModule:
    """A module of ours: its definitions in their order, and where its other names come from."""

    definitions: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name to module and attribute, which is empty for the module itself."""


class ModuleReader(ast.NodeTransformer):
    """Makes code ready to be moved.

    Imports are noted and go, annotations too, and of a docstring the first paragraph stays. `build(make)` becomes what
    `make()` returns, `records("text")` a constant with the first `rows` of that fixture, and `with seeded():` its
    block: every rank sets a seed before it builds anything. Where ranks have `seeds` of their own, these two stay.
    """

    def __init__(self, module: SourceModule, rows: int, seeds: bool) -> None:
        self.module, self.rows, self.seeds, self.fields = module, rows, seeds, False

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            local = (each.asname or each.name).partition(".")[0]
            self.module.imports[local] = (each.name, "" if each.asname else "import")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.module.imports |= {each.asname or each.name: (str(node.module), each.name) for each in node.names}

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        inner, self.fields = self.fields, isinstance(node, ast.ClassDef)
        self.generic_visit(node)
        self.fields, node.returns = inner, None
        if [ast.unparse(each) for each in getattr(node, "bases", ())] == ["FaultlineError"]:
            node.bases = [ast.Name("Exception", ast.Load())]
        if (text := ast.get_docstring(node, clean=False)) is not None:
            node.body[0].value.value = text.split("\n\n")[0].rstrip()
        return node

    visit_ClassDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if self.fields:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node) if node.value else None

    def visit_With(self, node: ast.With) -> Any:
        self.generic_visit(node)
        match node.items[0].context_expr:
            case ast.Call(func=ast.Name(id="seeded"), args=[seed]):
                begin = ast.parse(f"torch.manual_seed({ast.unparse(seed)})").body if self.seeds else []
                return flat(node, [*begin, *node.body])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="build"), args=[make, *_]) if not self.seeds:
                return make.body if isinstance(make, ast.Lambda) else ast.Call(make, [], [])
            case (
                ast.Call(func=ast.Name(id="loaded"), args=[model])
                | ast.Call(func=ast.Name(id="as_sharded"), args=[_, model])
            ):
                return model
            case ast.Call(func=ast.Name(id="records"), args=[ast.Constant(value=str(name))]):
                lines = (FIXTURES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[: self.rows]
                text = "".join(f"    {json.loads(line)!r},\n" for line in lines)
                self.module.definitions[name.upper()] = constant(f"{name.upper()} = [\n{text}]")
                return ast.Name(name.upper(), ast.Load())
        return node


def constant(text: str) -> Any:
    """An assignment, which stays as it is written."""
    [node] = parsed(text)
    node.text = text
    return node


def read(text: str, rows: int = 0, seeds: bool = False) -> SourceModule:
    """A module's definitions and imports; anything else at its top, such as a docstring, is left away.

    Of a fixture, the first `rows` lines are taken.
    """
    module, lines = SourceModule(), text.splitlines()
    for node in parsed(text):
        first, last = node.lineno - 1 - len(getattr(node, "above", ())), node.end_lineno
        ready = ModuleReader(module, rows, seeds).visit(node)
        if isinstance(ready, ast.FunctionDef | ast.ClassDef):
            module.definitions[ready.name] = ready
        elif isinstance(ready, ast.Assign | ast.AugAssign):
            target = ready.targets[0] if isinstance(ready, ast.Assign) else ready
            module.definitions[ast.unparse(target)] = ready
            if ready is node:
                ready.text = "\n".join(lines[first:last])
    return module


@functools.cache
def _read_once(text: str, rows: int, seeds: bool) -> SourceModule:
    return read(text, rows, seeds)


def source(name: str) -> Path:
    """The file of a module of ours, of the package or beside it."""
    place = (PACKAGE.parent if name.startswith(f"{PACKAGE.name}.") else ROOT) / name.replace(".", "/")
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


class Sources:
    """The modules of ours that one file is made of; `failure` is the folder's failure.py."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._folder, self._rows = folder, rows
        self._seeds = bool(OF_RANKS.search((folder / "failure.py").read_text(encoding="utf-8")))
        self._constants: dict[str, dict[str, Any]] = {}
        self._read: dict[str, SourceModule] = {}
        self._decided: set[tuple[str, str]] = set()

    def __getitem__(self, name: str) -> SourceModule:
        if name not in self._read:
            text = (self._folder / "failure.py" if name == "failure" else source(name)).read_text(encoding="utf-8")
            once = _read_once(text, self._rows, self._seeds)  # whose trees nobody changes: `decide` has copies
            self._read[name] = SourceModule(dict(once.definitions), dict(once.imports))
        return self._read[name]

    def add_main(self, text: str) -> None:
        """The main part, which may use all names of the failure's module."""
        main, failure = read(text), self["failure"]
        main.imports = {name: ("failure", name) for name in failure.definitions} | failure.imports | main.imports
        self._read[MAIN] = main

    def definition(self, module: str, name: str) -> Any:
        """A definition, in which what its module decides is decided."""
        node = self[module].definitions[name]
        if isinstance(node, ast.FunctionDef) and module != MAIN and (module, name) not in self._decided:
            self._decided.add((module, name))
            node = self[module].definitions[name] = self.decide(module, node, {})
        return node

    def decide(self, module: str, function: ast.FunctionDef, known: Mapping[str, Any]) -> Any:
        """A function of a module, decided by what is known of its parameters and by the module's constants."""
        bound = bindings(function)
        constants = {name: value for name, value in self.constants(module).items() if name not in bound}
        # Nothing else may have its name; of a trainer's arguments, names are known, which it only gives other values.
        known = {n: value for n, value in known.items() if bound[n] == 1 or isinstance(value, frozenset)}
        values = {name: value for name, value in known.items() if isinstance(value, str)}
        values |= {n: constants[n] for n in self[module].imports if type(constants.get(n)) in (int, float)}
        decided = decide(function, {**constants, **known}, tables(self[module].definitions), values)
        return ClassesOfTrl(self[module]).visit(decided)

    def constants(self, name: str) -> dict[str, Any]:
        """The values of a module's constants, as far as they follow from each other and from those it imports."""
        if name in self._constants:
            return self._constants[name]
        known = self._constants.setdefault(name, {"string": string, "ROWS": ROWS})
        for local, (place, attribute) in self[name].imports.items():
            if ours(place) and attribute.isupper() and attribute in self.constants(place):
                known[local] = self.constants(place)[attribute]
        for local, node in self[name].definitions.items():
            with contextlib.suppress(NotConstant):
                known |= {local: evaluate(node.value, known)} if isinstance(node, ast.Assign) else {}
        return known


def tables(definitions: Mapping[str, Any]) -> dict[str, ast.Dict]:
    """The dictionaries among definitions, whatever their values are."""
    values = {name: getattr(node, "value", None) for name, node in definitions.items()}
    return {name: value for name, value in values.items() if isinstance(value, ast.Dict)}


class ClassesOfTrl(ast.NodeTransformer):
    """Puts TRL's own names in the place of `from_trl("gkd", "GKDTrainer")`, and imports them from where they are."""

    def __init__(self, module: SourceModule) -> None:
        self.imports = module.imports

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="from_trl"), args=[ast.Constant(str(package)), ast.Constant(str(name))]):
                self.imports[name] = (_home(package, name), name)
                return ast.Name(name, ast.Load())
        return node


def _home(package: str, name: str) -> str:
    """The module of the installed TRL that has a class, found without importing it."""
    spec = importlib.util.find_spec("trl")
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return "trl" if f'"{name}"' in (folder / "__init__.py").read_text() else f"trl.experimental.{package}"
