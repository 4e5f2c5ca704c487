"""The one pass over a definition: what is known is decided, and branches of other remedies go with what they need."""

import ast
from collections import Counter
from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

from faultline.base.errors import NotConstant
from faultline.export.names import bindings, changed, evaluate, literal, loads, pure

# Expressions that may have a value.
VALUED = (ast.Attribute, ast.Compare, ast.Subscript, ast.Call, ast.UnaryOp, ast.JoinedStr)
UNCHANGING = (str, int, float, tuple, type(None))
BLOCKS = ("body", "orelse", "finalbody")


class Decide(ast.NodeTransformer):
    """Changes a definition, bottom up.

    `values` are put where their names were; `known` only takes part in larger expressions that have a value; `tables`
    are dictionaries from constants to any expression, of which a look-up chooses one. Constants that are assigned to
    `candidates` become values, and other dictionaries tables.
    """

    def __init__(self, known: Mapping[str, Any], values: Mapping[str, Any], tables: Mapping[str, ast.Dict]) -> None:
        self.known, self.tables = {**known, **values}, dict(tables)
        self.values = {name: literal(value) for name, value in values.items()}
        self.candidates: set[str] = set()
        self.spread: set[str] = set()  # names that are used as ``**name`` alone
        self.fields = False  # whether what is assigned is read from outside

    def learn(self, node: ast.AST) -> None:
        """Find the names of a definition that may be constants: those that are bound once."""
        self.candidates = {name for name, times in bindings(node).items() if times == 1} - changed(node)
        spread = Counter(ast.unparse(e.value) for e in ast.walk(node) if isinstance(e, ast.keyword) and e.arg is None)
        self.spread = {name for name, times in loads(node).items() if spread[name] == times}

    def visit(self, node: ast.AST) -> Any:
        inner, self.fields = self.fields, isinstance(node, ast.ClassDef | ast.Module)
        self.generic_visit(node)
        self.fields = inner
        for name in BLOCKS:
            if isinstance(block := getattr(node, name, None), list):
                ends = [number for number, each in enumerate(block) if isinstance(each, ast.Return | ast.Raise)]
                del block[ends[0] + 1 if ends else len(block) :]
                if not block and name == "body":
                    block.append(ast.Pass())
        new = getattr(self, f"visit_{type(node).__name__}", lambda node: node)(node)
        if isinstance(new, VALUED) and isinstance(getattr(new, "ctx", ast.Load()), ast.Load):
            try:
                return literal(evaluate(new, self.known))
            except NotConstant:
                pass
        return new

    def holds(self, test: ast.AST) -> bool | None:
        try:
            return bool(evaluate(test, self.known))
        except NotConstant:
            return None

    # Expressions

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return deepcopy(self.values[node.id]) if isinstance(node.ctx, ast.Load) and node.id in self.values else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        holds = True if ast.unparse(node.body) == ast.unparse(node.orelse) else self.holds(node.test)
        return node if holds is None else node.body if holds else node.orelse

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """What is left of ``a and b`` or ``a or b``; what may have an effect stays in front of what decides."""
        decisive, left = isinstance(node.op, ast.Or), list[ast.expr]()
        for value in node.values:
            holds = self.holds(value)
            if holds == decisive:
                left = [*([] if all(map(pure, left)) else left), value]
                break
            if holds is None or (value is node.values[-1] and getattr(value, "value", None) not in (True, False)):
                left.append(value)  # or is what the whole gives
        node.values = left
        return node if len(left) > 1 else left[0] if left else ast.Constant(not decisive)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        loaded = isinstance(node.ctx, ast.Load)
        return self.look_up(node.value, node.slice, None) or node if loaded else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Of a look-up, what it finds; else without ``**{}``."""
        node.keywords = [e for e in node.keywords if e.arg or not isinstance(e.value, ast.Dict) or e.value.keys]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
            default = node.args[1] if len(node.args) == 2 else ast.Constant(None)
            return self.look_up(node.func.value, node.args[0], default) or node
        return node

    def look_up(self, table: ast.AST, key: ast.AST, default: ast.AST | None) -> ast.AST | None:
        """The expression that a look-up with a known key finds."""
        table = self.tables.get(table.id, table) if isinstance(table, ast.Name) else table
        if not isinstance(table, ast.Dict) or None in table.keys:
            return None
        try:
            choices = {evaluate(k, self.known): value for k, value in zip(table.keys, table.values, strict=True) if k}
            return deepcopy(choices.get(evaluate(key, self.known), default))
        except (NotConstant, TypeError):
            return None

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        """One of known values, ``{**SOME, "a": 1}``, is written out."""
        pairs = [(k, v) for k, v in zip(node.keys, node.values, strict=True) if k or getattr(v, "keys", True)]
        node.keys, node.values = [key for key, _ in pairs], [value for _, value in pairs]
        try:
            return literal(evaluate(node, self.known)) if None in node.keys else node
        except NotConstant:
            return node

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        """A plain one over known values is written out."""
        over = node.generators[0]
        try:
            values = [] if over.ifs or node.generators[1:] else list(evaluate(over.iter, self.known))
            one = [Decide(self.known, {ast.unparse(over.target): each}, self.tables) for each in values]
        except (NotConstant, TypeError):
            return node
        keys, items = ([each.visit(deepcopy(part)) for each in one] for part in (node.key, node.value))
        return ast.Dict(keys, items) if values else node

    # Statements

    def visit_If(self, node: ast.If) -> Any:
        if not node.orelse and _impossible(node.body[0]):  # of a cell that is exported
            return None
        holds = self.holds(node.test)
        return node if holds is None else flat(node, node.body if holds else node.orelse)

    def visit_For(self, node: ast.For) -> Any:
        return None if isinstance(node.iter, ast.Tuple) and not node.iter.elts else node

    def visit_Try(self, node: ast.Try) -> Any:
        """One whose handlers only raise again, now that it is known that the cell is possible, is its body."""
        idle = all(ast.unparse(each.body[0]) == "raise" or _impossible(each.body[0]) for each in node.handlers)
        return node if not idle or node.orelse or node.finalbody else flat(node, node.body)

    def visit_With(self, node: ast.With) -> Any:
        node.items = [each for each in node.items if ast.unparse(each) != "nullcontext()"]
        return node if node.items else flat(node, node.body)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return node if isinstance(node.value, ast.Constant) or not pure(node.value) else None

    def visit_Assign(self, node: ast.Assign) -> Any:
        """Constants are put where their names are used, and tables kept for look-ups; what else is assigned stays."""
        [target, *others], value = node.targets, node.value
        if others or ast.unparse(target) == ast.unparse(value):
            return node if others else None
        if not isinstance(target, ast.Tuple):
            return None if self.becomes_constant(target, value) else node
        try:
            value = value if isinstance(value, ast.Tuple) else literal(evaluate(value, self.known))
        except NotConstant:
            return node
        pairs = list(zip(target.elts, getattr(value, "elts", ()), strict=False))
        rest = [ast.Assign([name], each, lineno=0) for name, each in pairs if not self.becomes_constant(name, each)]
        return node if len(rest) == len(pairs) else rest

    def becomes_constant(self, target: ast.AST, value: ast.AST) -> bool:
        """Whether a name is a constant from here on."""
        name = target.id if isinstance(target, ast.Name) else ""
        if self.fields or name not in self.candidates:
            return False
        if isinstance(value, ast.Name) and value.id[0].isupper():  # of a global or a class
            self.values[name] = value
            return True
        if isinstance(value, ast.Dict) and value.keys:
            self.tables[name] = value
            return False
        try:
            constant = evaluate(value, self.known)
            source = literal(constant)
        except NotConstant:
            return False
        if not isinstance(constant, UNCHANGING) and (constant != {} or name not in self.spread):
            return False
        self.values[name], self.known[name] = source, constant
        return True


def flat(around: Any, block: list[Any]) -> list[Any]:
    """A block in the place of the statement that held it, whose comments come first."""
    if block:
        block[0].above = [*around.__dict__.pop("above", ()), *getattr(block[0], "above", ())]
    return block


def _impossible(node: ast.stmt) -> bool:
    return isinstance(node, ast.Raise) and ast.unparse(node).startswith("raise Impossible(")


def decide(
    node: Any,
    known: Mapping[str, Any] | None = None,
    tables: Mapping[str, ast.Dict] | None = None,
    values: Mapping[str, Any] | None = None,
    constants: bool = True,
) -> Any:
    """A definition in which all that is known is decided, its own `constants` too, and nothing idle is left."""
    change, before = Decide(known or {}, values or {}, tables or {}), ""
    node = deepcopy(node)
    while (now := ast.unparse(node)) != before:
        before = now
        if constants:
            change.learn(node)
        change.visit(node)
        without_unused(node, change.tables.keys() - (tables or {}).keys())
    return node


def without_unused(node: ast.AST, tables: Collection[str] = ()) -> None:
    """Take away inner functions that nothing calls, tables that nothing looks into, and variables that nothing reads.

    A class's own functions stay: who calls them isn't said by name.
    """
    used = loads(node)
    for each in ast.walk(node):
        for name in BLOCKS if not isinstance(each, ast.ClassDef | ast.Module) else ():
            if isinstance(block := getattr(each, name, None), list):
                left = [inner if used[_defined(inner)] else _effect(inner, tables) for inner in block]
                block[:] = [inner for inner in left if inner]


def _defined(node: ast.stmt) -> str:
    """The name that a function or an assignment defines; empty for anything else."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) else ""


def _effect(node: ast.stmt, tables: Collection[str]) -> ast.stmt | None:
    """What is left of a statement if nothing uses what it defines."""
    name = _defined(node)
    if not name:
        return node
    return None if isinstance(node, ast.FunctionDef) or name in tables else ast.Expr(node.value)  # type: ignore[attr-defined]
