"""A failure's own function, made into the one that its cell runs."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib.util
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libcst as cst

from faultline.catalogue import Variant
from faultline.errors import UsageError
from faultline.export.evaluate import Unknown, evaluate
from faultline.export.fold import fold
from faultline.export.names import code, gives, pruned, tree, used
from faultline.export.read import Sources
from faultline.matrix import Cell

# Of what a scenario builds, what each kind of outcome needs beside the model; all in the order of its fields.
PARTS = ("model", "loss", "batch", "check", "checkpoint", "around", "second", "by_hand", "optimizer", "before_step")


class Keys:
    """A dictionary of which only the keys are known."""

    def __init__(self, *keys: str) -> None:
        self.keys = keys

    def __contains__(self, key: str) -> bool:
        return key in self.keys


@dataclass(frozen=True)
class Root:
    """What is left of the function: its statements, and the expression of each part that it returns.

    `deepspeed` is what it changes in the strategy's config; `setup` says whether it is asked for anything.
    `accelerate` and `micro_batches` are as the scenario has them.
    """

    statements: str
    parts: Mapping[str, str]
    setup: bool
    deepspeed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    accelerate: bool = False
    micro_batches: int = 1

    @property
    def own(self) -> set[str]:
        """The names of the functions that are among the statements."""
        return {each.name for each in ast.walk(ast.parse(self.statements)) if isinstance(each, ast.FunctionDef)}


def scenario(sources: Sources, cell: Cell, variant: Variant, compared: bool) -> cst.FunctionDef:
    """The failure's `scenario` for one remedy; `compared` where the file also trains without the strategy."""
    return _folded(sources, "scenario", {"remedy": variant.remedy, "setup": _setup(cell, compared)})


def parts(function: cst.FunctionDef, wanted: Collection[str], known: Mapping[str, Any]) -> Root:
    """What a scenario builds, as far as it is wanted and there; `known` are its module's constants."""
    found = Returned(wanted)
    changed = function.visit(found)
    assert isinstance(changed, cst.FunctionDef)
    function = changed
    if not found.parts:
        raise UsageError("this cell can't be exported: its scenario doesn't end with return Scenario(...)")
    others = {name: evaluate(value, known) for name, value in found.others.items()}
    function = pruned(function)
    values = {name: code(value) for name, value in found.parts.items()}
    return Root(_statements(function), values, used(function, "setup"), **others)


def gives_back(source: str, name: str) -> bool:
    """Whether the function of that name in a source may return something."""
    tops = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef) and n.name == name]
    return any(gives(each) for each in tops)


def kept(sources: Sources, name: str, variant: Variant) -> None:
    """Decide in the failure's module what one of its functions, `save` or `load`, does for the variant."""
    function = _folded(sources, name, {"variant": variant})
    sources["failure"].definitions[name] = pruned(function, ["variant"])


def trainer(sources: Sources, cell: Cell, variant: Variant, arguments: tuple[str, ...] | None) -> Root:
    """The failure's `trainer` for one variant; `arguments` are the names of those that the strategy gives; None
    where the file also trains without it. TRL's classes are imported from where they are.
    """
    known: dict[str, Any] = {"variant": variant, "setup": _setup(cell, arguments is None)}
    known |= {"arguments": Keys(*arguments)} if arguments is not None else {}
    function = _folded(sources, "trainer", known)
    homes = Homes(sources, function)
    changed = function.visit(homes)
    assert isinstance(changed, cst.FunctionDef)
    function = pruned(changed)
    *_, last = function.body.body
    result = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    if not isinstance(result, cst.Return) or result.value is None or _own_returns(function) != 1:
        raise UsageError("this cell can't be exported: its trainer doesn't end with one return")
    return Root(_statements(function), {"built": code(result.value)}, used(function, "setup"), homes.deepspeed)


def _setup(cell: Cell, compared: bool) -> SimpleNamespace:
    """What is known of where a rank finds itself: how many there are only where there is no other run."""
    world = {} if compared else {"world_size": cell.world_size}
    return SimpleNamespace(checkpointing=cell.checkpointing, precision=cell.precision, **world)


def _folded(sources: Sources, name: str, known: Mapping[str, Any]) -> cst.FunctionDef:
    function = sources["failure"].definitions.get(name)
    if not isinstance(function, cst.FunctionDef):
        raise UsageError(f"this cell can't be exported: its failure.py has no function {name}")
    return fold(function, {**sources.constants("failure"), **known}, sources.tables("failure"))


def _statements(function: cst.FunctionDef) -> str:
    """What a function does before it returns, as source without indentation."""
    body = list(function.body.body[:-1])
    body = body[1:] if function.get_docstring() is not None else body
    return textwrap.dedent("".join(code(statement) for statement in body)).strip("\n")


def _own_returns(function: cst.FunctionDef) -> int:
    """How many returns a function has, without those of functions in it."""
    inner = [each for each in ast.walk(tree(function)) if isinstance(each, ast.FunctionDef | ast.Lambda)][1:]
    every = [each for each in ast.walk(tree(function)) if isinstance(each, ast.Return)]
    theirs = [each for one in inner for each in ast.walk(one) if isinstance(each, ast.Return)]
    return len(every) - len(theirs)


class Returned(cst.CSTTransformer):
    """Makes ``return Scenario(a, b, c, check=d)`` into ``return a, b, c, d``, of the wanted parts that are there."""

    FIELDS = ("model", "loss", "batch", "check", "checkpoint", "around", "second", "deepspeed")
    OTHERS = ("deepspeed", "accelerate", "micro_batches")  # which are constants

    def __init__(self, wanted: Collection[str]) -> None:
        super().__init__()
        self.wanted = wanted
        self.parts: dict[str, cst.BaseExpression] = {}
        self.others: dict[str, cst.BaseExpression] = {}

    def leave_Return(self, original: cst.Return, updated: cst.Return) -> cst.Return:
        call = updated.value
        if not isinstance(call, cst.Call) or code(call.func) != "Scenario":
            return updated
        given = {a.keyword.value if a.keyword else self.FIELDS[i]: a.value for i, a in enumerate(call.args)}
        self.others = {name: given[name] for name in self.OTHERS if name in given}
        self.parts = {n: given[n] for n in PARTS if n in self.wanted and n in given and code(given[n]) != "None"}
        return updated.with_changes(value=cst.Tuple([cst.Element(value) for value in self.parts.values()]))


class Homes(cst.CSTTransformer):
    """Makes ``from_trl("gkd", "GKDTrainer")`` into the class's name, and imports it from where TRL has it.

    Changes to the strategy's config, ``changed_config(arguments, ...)``, are taken out: the file has its own config.
    """

    def __init__(self, sources: Sources, function: cst.FunctionDef) -> None:
        super().__init__()
        self.imports = sources["failure"].imports
        self.known = dict(sources.constants("failure"))
        statements = list(ast.walk(tree(function)))
        for each in statements:
            if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
                with contextlib.suppress(ValueError):
                    self.known[each.targets[0].id] = ast.literal_eval(each.value)
        for each in statements:
            if isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
                self.known.pop(each.target.id, None)
        self.deepspeed: dict[str, Any] = {}

    def leave_Call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression:
        if code(updated.func) == "changed_config":
            try:
                self.deepspeed |= evaluate(updated.args[1].value, self.known)
            except Unknown as why:
                told = f"what its trainer changes in the DeepSpeed config is known only when it runs ({why})"
                raise UsageError(f"this cell can't be exported: {told}") from None
            return updated.args[0].value
        if code(updated.func) != "from_trl":
            return updated
        try:
            package, name = (ast.literal_eval(code(argument.value)) for argument in updated.args)
        except ValueError:
            raise UsageError("this cell can't be exported: its trainer's class has no constant name") from None
        self.imports[name] = (home(package, name), name)
        return cst.Name(name)


def home(package: str, name: str) -> str:
    """The module of the installed TRL that has a class, found without importing it."""
    spec = importlib.util.find_spec("trl")
    assert spec and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0])
    return "trl" if f'"{name}"' in (folder / "__init__.py").read_text() else f"trl.experimental.{package}"
