"""Source as trees that keep their comments, and what names a tree binds, changes and uses."""

import ast
import functools
import io
import re
import symtable
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from faultline.base.errors import NotConstant

# Methods that change nothing, and functions that only answer.
LOOKING = "get items keys values index split join lower upper removeprefix removesuffix startswith endswith".split()
ANSWERING = ("getattr", "hasattr", "isinstance", "len", "SimpleNamespace", "distributed.is_initialized")
LONGEST = 200  # characters of a constant that is put where its name was


def parsed(text: str) -> list[Any]:
    """The statements of a source, which keep their comments: those above them, and one beside."""
    module = ast.parse(text)
    nodes: list[Any] = [node for node in ast.walk(module) if isinstance(node, ast.stmt)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line, alone = token.start[0], not token.line[: token.start[1]].strip()
            around = [n for n in nodes if n.lineno <= line <= (n.lineno if hasattr(n, "body") else n.end_lineno)]
            following = [n for n in nodes if n.lineno > line] if alone else []
            if around and (hasattr(around[-1], "body") or around[-1].end_lineno == line):
                around[-1].beside = token.string
            elif node := around[-1] if around else min(following, key=lambda n: n.lineno, default=None):
                node.above = [*getattr(node, "above", ()), token.string]
    return module.body


class _Commented(ast.NodeTransformer):
    """Puts comments in front of their statements, as names that are none."""

    def visit(self, node: ast.AST) -> Any:
        self.generic_visit(node)
        match node:
            case ast.Call(
                args=[ast.GeneratorExp() as alone], keywords=[]
            ):  # which is unparsed in parentheses of its own
                return ast.Name(f"{ast.unparse(node.func)}{ast.unparse(alone)}")
        if not isinstance(node, ast.stmt):
            return node
        comments = [*getattr(node, "above", ()), *([f"#>{node.beside}"] if hasattr(node, "beside") else [])]
        return [*(ast.Expr(ast.Name(each)) for each in comments), node]


def code(*nodes: Any) -> str:
    """Statements or expressions as source."""
    text = ast.unparse(_Commented().visit(ast.Module([deepcopy(node) for node in nodes], [])))
    text = re.sub(r"\b(\w+)=\{\1!r\}", r"{\1=}", text)
    lines = re.sub(r"(?m)^ *#>(.*)\n(.*)$", r"\2  \1", text).strip("\n").splitlines()
    for each in sorted(_tuples(ast.parse("\n".join(lines))), key=lambda each: -each.col_offset):
        line, start, end = lines[each.lineno - 1], each.col_offset, each.end_col_offset
        if line[start] == "(":
            lines[each.lineno - 1] = f"{line[:start]}{line[start + 1 : end - 1]}{line[end:]}"
    return "\n".join(lines)


def _tuples(module: ast.Module) -> Iterator[Any]:
    """The tuples that need no parentheses."""
    for node in ast.walk(module):
        places = [getattr(node, name, None) for name in ("target", "value")] + getattr(node, "targets", [])
        for each in places if isinstance(node, ast.Assign | ast.Return | ast.For | ast.comprehension) else ():
            if isinstance(each, ast.Tuple) and len(each.elts) > 1:
                yield each


def evaluate(node: ast.AST, known: Mapping[str, Any]) -> Any:
    """The value of an expression over known names; raises NotConstant."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and each.id not in known:
            raise NotConstant(each.id)
        if isinstance(each, ast.Call) and not (isinstance(each.func, ast.Attribute) and each.func.attr in LOOKING):
            raise NotConstant("a call")
    try:
        return eval(ast.unparse(node), {"__builtins__": {}}, dict(known))
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
        raise NotConstant(str(error)) from None


def literal(value: Any) -> Any:
    """A constant as an expression; raises NotConstant for what has none, or a long one."""
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value and len(text) <= LONGEST
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise NotConstant(text[:50])
    return ast.parse(text, mode="eval").body


def pure(node: ast.AST) -> bool:
    """Whether an expression does nothing but have a value; to read an attribute counts as nothing."""
    for each in ast.walk(node):
        if isinstance(each, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
            return False
        if isinstance(each, ast.Call) and ast.unparse(each.func) not in ANSWERING:
            return False
    return True


def binding(node: ast.AST) -> str | None:
    """The name that a node binds, if any."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler) else None


def bindings(node: ast.AST) -> Counter[str]:
    """How often each name is bound anywhere below a node, be it as a parameter or a loop's variable."""
    return Counter(filter(None, map(binding, ast.walk(node))))


def changed(node: ast.AST) -> set[str]:
    """Names whose object may change: stored into, or asked to do something for its effect."""
    parts = [
        e for e in ast.walk(node) if isinstance(e, ast.Subscript | ast.Attribute) and isinstance(e.value, ast.Name)
    ]
    looking = [e for e in parts if isinstance(e.ctx, ast.Load) and getattr(e, "attr", "get") in LOOKING]
    return {ast.unparse(each.value) for each in parts if each not in looking}


def loads(node: ast.AST) -> Counter[str]:
    """How often each name is used anywhere below a node."""
    return Counter(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def outside(node: ast.AST) -> tuple[str, ...]:
    """The names that a definition takes from around it, in alphabetical order."""
    return _outside(ast.unparse(node))


@functools.lru_cache(10_000)
def _outside(text: str) -> tuple[str, ...]:
    tables = [top := symtable.symtable(text, "<definition>", "exec")]
    for table in tables:
        tables += table.get_children()
    symbols = [(symbol, table) for table in tables for symbol in table.get_symbols()]
    names = {s.get_name() for s, table in symbols if s.is_referenced() and (table is top or s.is_global())}
    return tuple(sorted(names))


def only_result(function: ast.FunctionDef) -> ast.expr | None:
    """The value that a function's last statement returns, if it returns nowhere else."""
    nodes: list[ast.AST] = [function]
    for node in nodes:
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef)]
    last = function.body[-1]
    once = sum(isinstance(node, ast.Return) for node in nodes) == 1
    return last.value if once and isinstance(last, ast.Return) else None


def statements(function: ast.FunctionDef) -> list[ast.stmt]:
    """What a function does, without its docstring."""
    return function.body[1:] if ast.get_docstring(function) is not None else function.body
