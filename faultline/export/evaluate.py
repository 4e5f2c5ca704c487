"""Expressions whose value is known before a file runs."""

import ast
from collections.abc import Mapping
from typing import Any

import libcst as cst

from faultline.base.errors import NotConstant
from faultline.export.names import LOOKING, code

LONGEST = 200  # characters of a constant that is put where its name was


def constant(node: cst.BaseExpression) -> bool:
    """Whether an expression is a constant, and not a long one."""
    try:
        literal(evaluate(node, {}))
    except NotConstant:
        return False
    return True


def evaluate(node: cst.BaseExpression, known: Mapping[str, Any]) -> Any:
    """The value of an expression over known names; raises NotConstant."""
    tree = ast.parse(f"({code(node)})", mode="eval")
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and each.id not in known:
            raise NotConstant(each.id)
        if isinstance(each, ast.Call) and not (isinstance(each.func, ast.Attribute) and each.func.attr in LOOKING):
            raise NotConstant("a call")
    try:
        return eval(compile(tree, "<fold>", "eval"), {"__builtins__": {}}, dict(known))
    except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known
        raise NotConstant(str(error)) from None


def literal(value: Any) -> cst.BaseExpression:
    """A constant as source; raises NotConstant for what has none, or a long one."""
    text = repr(value)
    try:
        same = ast.literal_eval(text) == value and len(text) <= LONGEST
    except (ValueError, SyntaxError):
        same = False
    if not same:
        raise NotConstant(text[:50])
    return cst.parse_expression(text)


def spread(arguments: Any) -> list[cst.Arg]:
    """Arguments with ``**{}`` left away."""
    empty = [a for a in arguments if a.star == "**" and isinstance(a.value, cst.Dict) and not a.value.elements]
    rest = [a for a in arguments if a not in empty]
    return [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in rest] if empty else rest
