"""What names a piece of source binds, changes and uses."""

from __future__ import annotations

import ast
import functools
import symtable
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import libcst as cst

LOOKING = (  # methods that change nothing
    *("get", "split", "items", "keys", "values", "index", "removeprefix", "removesuffix", "startswith", "endswith"),
)
IDLE = ("getattr", "hasattr", "isinstance", "len")  # functions that do nothing but answer
_EMPTY = cst.Module([])


@functools.lru_cache(50_000)  # nodes never change
def code(node: cst.CSTNode) -> str:
    return _EMPTY.code_for_node(node)


@functools.lru_cache(10_000)
def tree(node: cst.CSTNode) -> ast.Module:
    return ast.parse(code(node).strip())


def parameters(function: cst.FunctionDef) -> list[str]:
    every = function.params
    return [p.name.value for p in (*every.posonly_params, *every.params, *every.kwonly_params)]


def bindings(function: cst.CSTNode) -> Counter[str]:
    """How often each name is bound anywhere in a function, be it as a parameter or a loop's variable."""
    found: Counter[str] = Counter()
    for each in ast.walk(tree(function)):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            found[each.id] += 1
        elif isinstance(each, ast.arg):
            found[each.arg] += 1
        elif isinstance(each, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) and each.name:
            found[each.name] += 1
    return found


def locals_of(function: cst.CSTNode) -> set[str]:
    """The names that a function binds outside of comprehensions, which keep theirs to themselves."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.comprehension):
                walk(child)

    walk(tree(function))
    return found


def changed(function: cst.CSTNode) -> set[str]:
    """Names whose object a function may change: stored into, or asked to do something for its effect."""
    found = set()
    for each in ast.walk(tree(function)):
        target: ast.AST | None = None
        if isinstance(each, ast.Subscript | ast.Attribute) and isinstance(each.ctx, ast.Store | ast.Del):
            target = each
        elif isinstance(each, ast.Attribute) and each.attr not in LOOKING:
            target = each  # `names.append`, perhaps handed on
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            target = each.value.func
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            target = each.value.func if isinstance(each.value.func, ast.Attribute) else None
            target = None if target is not None and target.attr in LOOKING else target
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name):
            found.add(target.id)
    return found


def outside(node: cst.CSTNode) -> list[str]:
    """The names that a definition takes from around it, in alphabetical order."""
    found: set[str] = set()

    def walk(table: symtable.SymbolTable, top: bool) -> None:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (top or symbol.is_global()):
                found.add(symbol.get_name())
        for child in table.get_children():
            walk(child, False)

    walk(symtable.symtable(code(node).strip(), "<definition>", "exec"), True)
    return sorted(found)


def used(node: cst.CSTNode, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        for each in ast.walk(tree(node))
    )


def gives(function: ast.FunctionDef) -> bool:
    """Whether a function may return something else than None."""
    values = [each.value for each in ast.walk(function) if isinstance(each, ast.Return)]
    return any(value is not None and ast.unparse(value) != "None" for value in values)


def pure(node: ast.AST) -> bool:
    """Whether an expression does nothing but have a value; to read an attribute counts as nothing."""
    effects = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    for each in ast.walk(node):
        if isinstance(each, effects):
            return False
        if isinstance(each, ast.Call) and not (isinstance(each.func, ast.Name) and each.func.id in IDLE):
            return False
    return True


class Statements(cst.CSTTransformer):
    """Takes lines away with the last statement on them."""

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        return updated if updated.body else cst.RemoveFromParent()


class Without(Statements):
    """Takes away the assignments to names, and the functions with these names within others."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.unwanted = names
        self.depth = 0

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> Any:
        target = updated.targets[0].target
        gone = len(updated.targets) == 1 and isinstance(target, cst.Name) and target.value in self.unwanted
        return cst.RemoveFromParent() if gone else updated

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> Any:
        self.depth -= 1
        return cst.RemoveFromParent() if self.depth and updated.name.value in self.unwanted else updated


def without(function: cst.FunctionDef, names: Collection[str]) -> cst.FunctionDef:
    if not names:
        return function
    found = function.visit(Without(names))
    assert isinstance(found, cst.FunctionDef)
    return found


def pruned(function: cst.FunctionDef, decided: Iterable[str] = ()) -> cst.FunctionDef:
    """A function without the parameters that are decided, and without functions in it that nothing uses.

    A class's own functions stay: who calls them isn't said by name.
    """
    kept = [p for p in function.params.params if p.name.value not in decided]
    kept = [p.with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in kept]
    function = function.with_changes(params=function.params.with_changes(params=kept))
    while True:
        nodes = list(ast.walk(tree(function)))
        inner = {each.name for each in nodes if isinstance(each, ast.FunctionDef)}
        methods = {
            own.name for each in nodes if isinstance(each, ast.ClassDef) for own in each.body if hasattr(own, "name")
        }
        unused = {name for name in inner - methods - {function.name.value} if not used(function, name)}
        if not unused:
            return function
        function = without(function, unused)


def argument(call: cst.Call, position: int, parameter: str) -> cst.Arg | None:
    by_name = next((a for a in call.args if a.keyword and a.keyword.value == parameter), None)
    positional = [a for a in call.args if not a.keyword]
    return by_name or (positional[position] if position < len(positional) else None)
