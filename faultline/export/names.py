"""What names a piece of source binds, changes and uses."""

import ast
import dataclasses
import functools
import symtable
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import libcst as cst

# Methods that change nothing.
LOOKING = "get items keys values index split join lower upper removeprefix removesuffix startswith endswith".split()
IDLE = ("getattr", "hasattr", "isinstance", "len")  # functions that do nothing but answer
SPACING = (
    "leading_lines",
    "lines_after_decorators",
    "header",
    "footer",
    "trailing_whitespace",
    "lpar",
    "rpar",
    "comma",
)
SPACES = (cst.BaseParenthesizableWhitespace, cst.EmptyLine, cst.TrailingWhitespace, cst.Newline, cst.Comment)
_EMPTY = cst.Module([])


@functools.lru_cache(50_000)  # nodes never change
def code(node: cst.CSTNode) -> str:
    return _EMPTY.code_for_node(node)


@functools.lru_cache(10_000)
def tree(node: cst.CSTNode) -> ast.Module:
    return ast.parse(code(node).strip())


def within(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, without those that only say how it is spaced; five times as fast as a visitor."""
    yield node
    for field in _fields(type(node)):
        below = getattr(node, field)
        for each in below if isinstance(below, list | tuple) else (below,):
            if isinstance(each, cst.CSTNode):
                yield from within(each)


@functools.cache
def _fields(kind: type[cst.CSTNode]) -> list[str]:
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if not name.startswith("whitespace") and name not in SPACING]


def parameters(function: cst.FunctionDef) -> list[str]:
    every = function.params
    return [p.name.value for p in (*every.posonly_params, *every.params, *every.kwonly_params)]


def bindings(function: cst.CSTNode) -> Counter[str]:
    """How often each name is bound anywhere in a function, be it as a parameter or a loop's variable."""
    return Counter(filter(None, map(_bound, ast.walk(tree(function)))))


def _bound(node: ast.AST) -> str | None:
    """The name that a node of a tree binds, if any."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) else None


def locals_of(function: cst.CSTNode) -> set[str]:
    """The names that a function binds outside of comprehensions, which keep their names to themselves."""
    nodes: list[ast.AST] = [tree(function)]
    for node in nodes:
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.comprehension)]
    return {name for name in map(_bound, nodes) if name}


def changed(function: cst.CSTNode) -> set[str]:
    """Names whose object a function may change: stored into, or asked to do something for its effect."""
    names = set()
    for each in ast.walk(tree(function)):
        target: ast.AST | None = None
        if isinstance(each, ast.Subscript | ast.Attribute) and isinstance(each.ctx, ast.Store | ast.Del):
            target = each
        elif isinstance(each, ast.Attribute) and each.attr not in LOOKING:
            target = each  # `names.append`, perhaps handed on
        elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            target = each.value.func
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name):
            names.add(target.id)
    return names


def outside(node: cst.CSTNode) -> list[str]:
    """The names that a definition takes from around it, in alphabetical order."""
    top = symtable.symtable(code(node).strip(), "<definition>", "exec")
    tables = [top]
    for table in tables:
        tables += table.get_children()
    symbols = [(symbol, table) for table in tables for symbol in table.get_symbols()]
    return sorted({s.get_name() for s, table in symbols if s.is_referenced() and (table is top or s.is_global())})


def used(node: cst.CSTNode, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        for each in ast.walk(tree(node))
    )


def pure(node: ast.AST) -> bool:
    """Whether an expression does nothing but have a value; to read an attribute counts as nothing."""
    effects = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    for each in ast.walk(node):
        if isinstance(each, effects):
            return False
        if isinstance(each, ast.Call) and not (isinstance(each.func, ast.Name) and each.func.id in IDLE):
            return False
    return True


def flat(block: cst.BaseSuite, comments: Any) -> Any:
    """A block's statements in the place of the statement that held it, whose comments come first."""
    first: Any
    first, *rest = block.body
    if not hasattr(first, "leading_lines"):  # one line behind the colon
        first = cst.SimpleStatementLine([first])
    return cst.FlattenSentinel([first.with_changes(leading_lines=[*comments, *first.leading_lines]), *rest])


class Change(cst.CSTTransformer):
    """Goes through nodes, but not into how they are spaced, nor asks for methods of single fields: both take time."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        return not isinstance(node, SPACES) and super().on_visit(node)

    def on_visit_attribute(self, node: cst.CSTNode, attribute: str) -> None: ...

    def on_leave_attribute(self, original_node: cst.CSTNode, attribute: str) -> None: ...


class Statements(Change):
    """Takes lines away with the last statement on them."""

    def leave_SimpleStatementLine(self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine) -> Any:
        return updated if updated.body else cst.RemoveFromParent()


def visited(function: cst.FunctionDef, change: cst.CSTTransformer) -> cst.FunctionDef:
    """A function after a change that leaves it a function."""
    changed = function.visit(change)
    assert isinstance(changed, cst.FunctionDef)
    return changed


class Without(Statements):
    """Takes away the assignments to names, and the functions with these names within others."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self.unwanted = names
        self.depth = 0

    def leave_Assign(self, original: cst.Assign, updated: cst.Assign) -> Any:
        target = updated.targets[0].target
        unwanted = len(updated.targets) == 1 and isinstance(target, cst.Name) and target.value in self.unwanted
        return cst.RemoveFromParent() if unwanted else updated

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> Any:
        self.depth -= 1
        return cst.RemoveFromParent() if self.depth and updated.name.value in self.unwanted else updated


def pruned(function: cst.FunctionDef, decided: Iterable[str] = ()) -> cst.FunctionDef:
    """A function without the parameters that are decided, and without functions in it that nothing uses.

    A class's own functions stay: who calls them isn't said by name.
    """
    rest = [p for p in function.params.params if p.name.value not in decided]
    rest = [p.with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in rest]
    function = function.with_changes(params=function.params.with_changes(params=rest))
    while True:
        nodes = list(ast.walk(tree(function)))
        inner = {each.name for each in nodes if isinstance(each, ast.FunctionDef)}
        classes = [each for each in nodes if isinstance(each, ast.ClassDef)]
        methods = {each.name for node in classes for each in node.body if isinstance(each, ast.FunctionDef)}
        unused = {name for name in inner - methods - {function.name.value} if not used(function, name)}
        if not unused:
            return function
        function = visited(function, Without(unused))


def only_result(function: cst.FunctionDef) -> cst.BaseExpression | None:
    """The value that a function's last statement returns, if it returns nowhere else."""
    nodes: list[ast.AST] = [tree(function).body[0]]
    for node in nodes:
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]
    line = function.body.body[-1]
    last = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    once = sum(isinstance(node, ast.Return) for node in nodes) == 1
    return last.value if once and isinstance(last, cst.Return) else None


def argument(call: cst.Call, position: int, parameter: str) -> cst.Arg | None:
    by_name = next((a for a in call.args if a.keyword and a.keyword.value == parameter), None)
    positional = [a for a in call.args if not a.keyword]
    return by_name or (positional[position] if position < len(positional) else None)
