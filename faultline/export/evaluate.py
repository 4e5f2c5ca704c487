"""Expressions whose value is known before a file runs."""

import ast
from collections.abc import Mapping
from typing import Any

import libcst as cst

from faultline.export.names import code

# Pure methods of constants, and the syntax without names that is a constant.
METHODS = ("get", "split", "removeprefix", "removesuffix", "startswith", "endswith", "index", "lower", "upper", "join")
LITERAL = (ast.Expression, ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.Load)
NAMED = (ast.Slice, ast.Name, ast.Attribute, ast.Subscript, ast.Compare, ast.BoolOp, ast.Starred)
FOLDED = (*LITERAL, *NAMED, ast.JoinedStr, ast.FormattedValue)
LONGEST = 200  # characters of a constant that is put where its name was


class Unknown(Exception):
    """An expression whose value isn't known before the file runs."""


def parsed(node: cst.BaseExpression) -> ast.Expression:
    return ast.parse(f"({code(node)})", mode="eval")


def constant(node: cst.BaseExpression) -> bool:
    """Whether an expression is a constant as it is written."""
    kinds = (*LITERAL, ast.unaryop, ast.operator)
    return all(isinstance(each, kinds) for each in ast.walk(parsed(node)))


def evaluate(node: cst.BaseExpression, known: Mapping[str, Any]) -> Any:
    """The value of an expression over known names; raises Unknown."""
    tree = parsed(node)
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and each.id not in known:
            raise Unknown(each.id)
        if isinstance(each, ast.Call):
            if not (isinstance(each.func, ast.Attribute) and each.func.attr in METHODS):
                raise Unknown("a call")
        elif not isinstance(each, (*FOLDED, ast.unaryop, ast.operator, ast.boolop, ast.cmpop, ast.expr_context)):
            raise Unknown(type(each).__name__)
    try:
        return eval(compile(tree, "<fold>", "eval"), {"__builtins__": {}}, dict(known))
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
        raise Unknown(str(error)) from None


def literal(value: Any) -> cst.BaseExpression:
    """A constant as source; raises Unknown for what has none, or a long one."""
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value and len(text) <= LONGEST
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise Unknown(text[:50])
    return cst.parse_expression(text)


def spread(arguments: Any) -> list[cst.Arg]:
    """Arguments with ``**{}`` left away."""
    empty = [a for a in arguments if a.star == "**" and isinstance(a.value, cst.Dict) and not a.value.elements]
    rest = [a for a in arguments if a not in empty]
    return [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in rest] if empty else rest
